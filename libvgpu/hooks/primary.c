/* SPDX-License-Identifier: Apache-2.0 */
/* primary.c - primary contexts, and green ones, which are parts of them. */
#include <errno.h>

#include "../compute/compute.h"
#include "../driver/prototypes.h"
#include "../kernel/kernel.h"
#include "../memory/account.h"
#include "../memory/memory.h"
#include "../memory/pool.h"
#include "../slices/slices.h"
#include "context.h"

/* References to primary contexts, by name and by green contexts. The first one makes the context. */
static VGPU_PRIVATE int primary_refs[VGPU_MAX_CARDS];
/* Whether it is counted as a context. */
static VGPU_PRIVATE bool counted[VGPU_MAX_CARDS];
/* Of both. A thread with this lock may wait for memory of processes that have just died. */
static VGPU_PRIVATE pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;
static VGPU_TABLE(greens); /* green contexts -> card */

/* The handle that was given for the last primary context of a card. */
static CUcontext primary[VGPU_MAX_CARDS];

/* Call this before the driver takes a reference: the first reference is charged for the context.
 * A second thread waits for that charge, because it makes the context if the first is refused.
 * Returns 0 or -ENOMEM. */
static int primary_taking(int card)
{
	VGPU_LOCK(&primary_lock);

	if (!primary_refs[card] && vgpu_overhead_context(card))
		return -ENOMEM;
	primary_refs[card]++;
	return 0;
}

/* The call that takes the first reference can return after the call that takes the second. The
 * charge ends with the last reference, whichever call of the driver failed. */
static void primary_taken(int card, CUresult r)
{
	VGPU_LOCK(&primary_lock);

	if (r == CUDA_SUCCESS) {
		if (!counted[card])
			vgpu_context_began(card);
		counted[card] = true;
	} else if (--primary_refs[card] == 0) {
		vgpu_overhead_context_gone(card);
	}
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	VGPU_NEED_CUDA(cuDevicePrimaryCtxRetain);
	if (vgpu_not_granted(dev))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	int card = vgpu_card_of_device(dev);
	if (card < 0)
		return vgpu_real.cuDevicePrimaryCtxRetain(pctx, dev);
	if (primary_taking(card))
		return vgpu_oom(card, 0);
	vgpu_rm_creating(card);
	CUresult r = vgpu_real.cuDevicePrimaryCtxRetain(pctx, dev);
	vgpu_rm_creating(-1);
	if (r == CUDA_SUCCESS)
		STORE(&primary[card], *pctx);
	primary_taken(card, r);
	return r;
}

static int references(int card)
{
	VGPU_LOCK(&primary_lock);

	return primary_refs[card];
}

/* A reference has gone; the last one ends the context. */
static void primary_given(int card, CUdevice dev)
{
	VGPU_LOCK(&primary_lock);

	if (primary_refs[card] <= 0 || --primary_refs[card] > 0)
		return;
	vgpu_memory_ended(card, dev, vgpu_primary_owner(card));
	counted[card] = false;
	vgpu_context_ended(card);
}

/* Others than the program hold primary contexts too: green ones do. */
static bool primary_gone(CUdevice dev, CUresult r)
{
	unsigned flags;
	int active = 0;

	return r == CUDA_SUCCESS &&
	       (!vgpu_real.cuDevicePrimaryCtxGetState ||
		vgpu_real.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS ||
		!active);
}

static CUresult primary_release(CUresult (*real)(CUdevice), CUdevice dev, bool all)
{
	CUcontext ctx = NULL;
	int card = vgpu_card_of_device(dev);

	if (card >= 0 && (all || references(card) <= 1))
		ctx = LOAD(&primary[card]);
	vgpu_gate_ends(ctx);
	vgpu_mem_begin();
	CUresult r = real(dev);
	bool gone = primary_gone(dev, r);
	vgpu_gate_ended(ctx, gone);
	vgpu_captures_ended(gone ? ctx : NULL);
	vgpu_pools_forget_current();
	vgpu_uses_forget();
	/* A reset ends the context but not the references: the next call that
	 * needs it makes it anew. Its groups are found again by the watcher. */
	if (r == CUDA_SUCCESS && card >= 0 && all)
		vgpu_memory_ended(card, dev, vgpu_primary_owner(card));
	else if (r == CUDA_SUCCESS && card >= 0)
		primary_given(card, dev);
	vgpu_mem_end();
	return r;
}

#define PRIMARY_ENDS(name, all)                                   \
	CUresult name(CUdevice dev)                               \
	{                                                         \
		VGPU_NEED_CUDA(name);                             \
		return primary_release(vgpu_real.name, dev, all); \
	}
PRIMARY_ENDS(cuDevicePrimaryCtxRelease, false)
PRIMARY_ENDS(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY_ENDS(cuDevicePrimaryCtxReset, true)
PRIMARY_ENDS(cuDevicePrimaryCtxReset_v2, true)

/* A green context is a part of the primary one: it keeps a reference to it. */
CUresult cuGreenCtxCreate(CUgreenCtx *pctx, void *desc, CUdevice dev, unsigned flags)
{
	struct vgpu_item item = {.size = 0};
	struct vgpu_schedule s;

	VGPU_NEED_CUDA(cuGreenCtxCreate);
	if (vgpu_not_granted(dev))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	item.card = vgpu_card_of_device(dev);
	if (item.card < 0)
		return vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags);
	if (primary_taking(item.card))
		return vgpu_oom(item.card, 0);
	vgpu_rm_creating(item.card);
	CUresult r = vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags);
	vgpu_rm_creating(-1);
	primary_taken(item.card, r);
	if (r != CUDA_SUCCESS)
		return r;
	item.key = (uint64_t)(uintptr_t)*pctx;
	item.other = (uint64_t)dev;
	vgpu_table_put(&greens, &item);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)item.card, &s, vgpu_now()))
		vgpu_slices_apply(item.card, &s, VGPU_READ_BACK);
	return r;
}

/* Its streams go with it, and with the last one of a card the primary context may. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext ctx = NULL, under = NULL;
	struct vgpu_item item;

	VGPU_NEED_CUDA(cuGreenCtxDestroy);
	bool known = vgpu_table_take(&greens, (uint64_t)(uintptr_t)green, &item);
	if (!vgpu_state.grant || !vgpu_real.cuCtxFromGreenCtx ||
	    vgpu_real.cuCtxFromGreenCtx(&ctx, green) != CUDA_SUCCESS)
		ctx = NULL;
	if (known)
		under = LOAD(&primary[item.card]);
	if (ctx == under) /* a driver may give the primary one, which others hold too */
		ctx = NULL;
	vgpu_gate_ends(ctx);
	vgpu_gate_ends(under);
	vgpu_mem_begin();
	CUresult r = vgpu_real.cuGreenCtxDestroy(green);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	bool gone = known && primary_gone((CUdevice)item.other, r);
	vgpu_gate_ended(under, gone);
	vgpu_captures_ended(r == CUDA_SUCCESS ? ctx : NULL);
	vgpu_captures_ended(gone ? under : NULL);
	vgpu_uses_forget();
	if (known && r == CUDA_SUCCESS)
		primary_given(item.card, (CUdevice)item.other);
	else if (known)
		vgpu_table_put(&greens, &item);
	vgpu_mem_end();
	return r;
}
