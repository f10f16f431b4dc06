/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: where channel groups come from. Slices are set as soon
 * as a context is usable, before the program gets it.
 */
#ifdef VGPU_PRELOAD
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

/* Primary contexts are retained many times, by name and by green contexts, and made once. */
static int primary_refs[VGPU_MAX_CARDS];
static struct vgpu_table made = VGPU_TABLE_INIT;   /* other contexts -> card, references */
static struct vgpu_table greens = VGPU_TABLE_INIT; /* green contexts -> card */

/* The primary context of a card, as an owner: it has a handle only while it is there. */
static uint64_t primary_of(int card)
{
	return (uint64_t)card + 1;
}

uint64_t vgpu_context_owner(int card)
{
	struct vgpu_item item;
	CUcontext ctx = NULL;

	if (__atomic_load_n(&made.count, __ATOMIC_RELAXED) && vgpu_real.cuCtxGetCurrent &&
	    vgpu_real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS &&
	    vgpu_table_get(&made, (uint64_t)(uintptr_t)ctx, &item))
		return item.key;
	return primary_of(card);
}

/* The driver has taken back what a context held. Pools and memory of cuMemCreate are the
 * device's and outlive it. */
static void memory_ended(int card, CUdevice dev, uint64_t owner)
{
	vgpu_linear_ended(owner);
	vgpu_arrays_ended(owner);
	vgpu_modules_ended(owner);
	vgpu_pools_ended(owner);
	vgpu_graphs_settle(card, dev);
}
/* The handle that was given for the last primary context of a card. */
static CUcontext primary[VGPU_MAX_CARDS];

static void began(int card)
{
	int cancel = vgpu_no_cancel();
	struct vgpu_schedule s;

	__atomic_add_fetch(&vgpu_my(card)->contexts, 1, __ATOMIC_SEQ_CST);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)card, &s)) {
		vgpu_gate_schedule(card, &s);
		vgpu_slices_apply(card, &s, true);
	}
	vgpu_watcher_start();
	vgpu_cancel_as(cancel);
}

static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

void vgpu_context_seen(int card)
{
	pthread_mutex_lock(&seen_lock);
	if (!__atomic_load_n(&vgpu_my(card)->contexts, __ATOMIC_RELAXED))
		began(card);
	pthread_mutex_unlock(&seen_lock);
}

void vgpu_contexts_in_child(void)
{
	pthread_mutex_init(&seen_lock, NULL);
	memset(primary_refs, 0, sizeof primary_refs);
}

static void ended(int card)
{
	uint32_t *n = &vgpu_my(card)->contexts;

	if (__atomic_load_n(n, __ATOMIC_SEQ_CST))
		__atomic_sub_fetch(n, 1, __ATOMIC_SEQ_CST);
	vgpu_overhead_context_gone(card);
}

CUresult cuInit(unsigned flags)
{
	const char *blocking;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuInit)
		return CUDA_ERROR_NO_DEVICE;
	/* As the driver reads it. */
	blocking = getenv("CUDA_LAUNCH_BLOCKING");
	if (blocking && *blocking && strcmp(blocking, "0") != 0)
		vgpu_launches_wait = true;
	r = vgpu_real.cuInit(flags);
	if (r == CUDA_SUCCESS && vgpu_state.from_env)
		vgpu_env_cards();
	return r;
}

/* Before a reference to a card's primary context is taken: the first makes the context and
 * pays for it. 0 or -ENOMEM. */
static int primary_taking(int card, bool *first)
{
	*first = __atomic_add_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST) == 1;
	if (!*first || vgpu_overhead_context(card) == 0)
		return 0;
	__atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
	return -ENOMEM;
}

static void primary_taken(int card, bool first, CUresult r)
{
	if (r == CUDA_SUCCESS) {
		if (first)
			began(card);
		return;
	}
	__atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
	if (first)
		vgpu_overhead_context_gone(card);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	bool first;
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuDevicePrimaryCtxRetain)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_not_granted(dev))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	card = vgpu_card_of_device(dev);
	if (card < 0)
		return vgpu_real.cuDevicePrimaryCtxRetain(pctx, dev);
	if (primary_taking(card, &first))
		return vgpu_oom(card, 0);
	vgpu_rm_creating(card);
	r = vgpu_real.cuDevicePrimaryCtxRetain(pctx, dev);
	vgpu_rm_creating(-1);
	if (r == CUDA_SUCCESS)
		__atomic_store_n(&primary[card], *pctx, __ATOMIC_RELAXED);
	primary_taken(card, first, r);
	return r;
}

/* A reference has gone; the last one ends the context. */
static void primary_given(int card, CUdevice dev)
{
	int refs = __atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);

	if (refs == 0) {
		memory_ended(card, dev, primary_of(card));
		ended(card);
	} else if (refs < 0) {
		__atomic_add_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
	}
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
	CUresult r;
	int card;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_of_device(dev);
	if (card >= 0 && (all || __atomic_load_n(&primary_refs[card], __ATOMIC_SEQ_CST) <= 1))
		ctx = __atomic_load_n(&primary[card], __ATOMIC_RELAXED);
	vgpu_gate_ends(ctx);
	vgpu_mem_begin();
	r = real(dev);
	vgpu_gate_ended(ctx, primary_gone(dev, r));
	vgpu_pools_forget_current();
	vgpu_uses_forget();
	/* A reset ends the context but not the references: the next call that
	 * needs it makes it anew. Its groups are found again by the watcher. */
	if (r == CUDA_SUCCESS && card >= 0 && all)
		memory_ended(card, dev, primary_of(card));
	else if (r == CUDA_SUCCESS && card >= 0)
		primary_given(card, dev);
	vgpu_mem_end();
	return r;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	vgpu_need_cuda();
	return primary_release(vgpu_real.cuDevicePrimaryCtxRelease, dev, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	vgpu_need_cuda();
	return primary_release(vgpu_real.cuDevicePrimaryCtxRelease_v2, dev, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	vgpu_need_cuda();
	return primary_release(vgpu_real.cuDevicePrimaryCtxReset, dev, true);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	vgpu_need_cuda();
	return primary_release(vgpu_real.cuDevicePrimaryCtxReset_v2, dev, true);
}

static void new_context(CUcontext ctx, int card, CUdevice dev)
{
	struct vgpu_item item = {.key = (uint64_t)(uintptr_t)ctx,
				 .card = card,
				 .other = (uint64_t)dev,
				 .refs = 1};

	/* Forgotten for want of memory: stays charged until the process ends. */
	vgpu_table_put(&made, &item);
	began(card);
}

/* Every form of cuCtxCreate: the same steps around another real call. */
#define CREATE(real_call)                                     \
	do {                                                  \
		int on = vgpu_card_of_device(dev);            \
		CUresult result;                              \
                                                              \
		if (vgpu_not_granted(dev))                    \
			return CUDA_ERROR_DEVICE_UNAVAILABLE; \
                                                              \
		if (on >= 0 && vgpu_overhead_context(on))     \
			return vgpu_oom(on, 0);               \
		if (on >= 0)                                  \
			vgpu_rm_creating(on);                 \
		result = real_call;                           \
		vgpu_rm_creating(-1);                         \
		if (on < 0)                                   \
			return result;                        \
		if (result == CUDA_SUCCESS)                   \
			new_context(*pctx, on, dev);          \
		else                                          \
			vgpu_overhead_context_gone(on);       \
		return result;                                \
	} while (0)

CUresult cuCtxCreate(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuCtxCreate)
		return CUDA_ERROR_NO_DEVICE;
	CREATE(vgpu_real.cuCtxCreate(pctx, flags, dev));
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuCtxCreate_v2)
		return CUDA_ERROR_NO_DEVICE;
	CREATE(vgpu_real.cuCtxCreate_v2(pctx, flags, dev));
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int n, unsigned flags,
			CUdevice dev)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuCtxCreate_v3)
		return CUDA_ERROR_NO_DEVICE;
	CREATE(vgpu_real.cuCtxCreate_v3(pctx, params, n, flags, dev));
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuCtxCreate_v4)
		return CUDA_ERROR_NO_DEVICE;
	CREATE(vgpu_real.cuCtxCreate_v4(pctx, params, flags, dev));
}

#define CREATE_FOR(name, params, args)               \
	CUresult name params                         \
	{                                            \
		vgpu_need_cuda();                    \
		if (!vgpu_real.name)                 \
			return CUDA_ERROR_NO_DEVICE; \
		CREATE(vgpu_real.name args);         \
	}

CREATE_FOR(cuGLCtxCreate, (CUcontext * pctx, unsigned flags, CUdevice dev), (pctx, flags, dev))
CREATE_FOR(cuGLCtxCreate_v2, (CUcontext * pctx, unsigned flags, CUdevice dev), (pctx, flags, dev))
CREATE_FOR(cuVDPAUCtxCreate,
	   (CUcontext * pctx, unsigned flags, CUdevice dev, uint32_t vdp, void *vdp_get),
	   (pctx, flags, dev, vdp, vdp_get))
CREATE_FOR(cuVDPAUCtxCreate_v2,
	   (CUcontext * pctx, unsigned flags, CUdevice dev, uint32_t vdp, void *vdp_get),
	   (pctx, flags, dev, vdp, vdp_get))

/* A green context is a part of the primary one: it keeps a reference to it. */
CUresult cuGreenCtxCreate(CUgreenCtx *pctx, void *desc, CUdevice dev, unsigned flags)
{
	struct vgpu_item item = {.refs = 1};
	struct vgpu_schedule s;
	bool first;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGreenCtxCreate)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_not_granted(dev))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	item.card = vgpu_card_of_device(dev);
	if (item.card < 0)
		return vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags);
	if (primary_taking(item.card, &first))
		return vgpu_oom(item.card, 0);
	vgpu_rm_creating(item.card);
	r = vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags);
	vgpu_rm_creating(-1);
	primary_taken(item.card, first, r);
	if (r != CUDA_SUCCESS)
		return r;
	item.key = (uint64_t)(uintptr_t)*pctx;
	item.other = (uint64_t)dev;
	vgpu_table_put(&greens, &item);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)item.card, &s))
		vgpu_slices_apply(item.card, &s, true);
	return r;
}

/* Its streams go with it, and with the last one of a card the primary context may. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext ctx = NULL, under = NULL;
	struct vgpu_item item;
	bool known;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGreenCtxDestroy)
		return CUDA_ERROR_NO_DEVICE;
	known = vgpu_table_get(&greens, (uint64_t)(uintptr_t)green, &item);
	if (!vgpu_state.grant || !vgpu_real.cuCtxFromGreenCtx ||
	    vgpu_real.cuCtxFromGreenCtx(&ctx, green) != CUDA_SUCCESS)
		ctx = NULL;
	if (known)
		under = __atomic_load_n(&primary[item.card], __ATOMIC_RELAXED);
	if (ctx == under) /* a driver may give the primary one, which others hold too */
		ctx = NULL;
	vgpu_gate_ends(ctx);
	vgpu_gate_ends(under);
	vgpu_mem_begin();
	r = vgpu_real.cuGreenCtxDestroy(green);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	vgpu_gate_ended(under, known && primary_gone((CUdevice)item.other, r));
	vgpu_uses_forget();
	if (r == CUDA_SUCCESS && vgpu_table_take(&greens, (uint64_t)(uintptr_t)green, &item))
		primary_given(item.card, (CUdevice)item.other);
	vgpu_mem_end();
	return r;
}

static void context_ended(CUcontext ctx)
{
	struct vgpu_item item;

	vgpu_uses_forget();
	if (!vgpu_table_take(&made, (uint64_t)(uintptr_t)ctx, &item))
		return;
	memory_ended(item.card, (CUdevice)item.other, item.key);
	ended(item.card);
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
	CUresult r;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_gate_ends(ctx);
	vgpu_mem_begin();
	r = real(ctx);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	if (r == CUDA_SUCCESS)
		context_ended(ctx);
	vgpu_mem_end();
	return r;
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	vgpu_need_cuda();
	return destroy(vgpu_real.cuCtxDestroy, ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	vgpu_need_cuda();
	return destroy(vgpu_real.cuCtxDestroy_v2, ctx);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned flags)
{
	struct vgpu_item item;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuCtxAttach)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuCtxAttach(pctx, flags);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&made, (uint64_t)(uintptr_t)*pctx, 1, &item);
	return r;
}

/* The last one destroys the context; cuCtxDestroy does whatever others there are. */
CUresult cuCtxDetach(CUcontext ctx)
{
	struct vgpu_item item;
	CUresult r;
	bool last;

	vgpu_need_cuda();
	if (!vgpu_real.cuCtxDetach)
		return CUDA_ERROR_NO_DEVICE;
	last = vgpu_state.grant && vgpu_table_get(&made, (uint64_t)(uintptr_t)ctx, &item) &&
	       item.refs == 1;
	if (last)
		return destroy(vgpu_real.cuCtxDetach, ctx);
	r = vgpu_real.cuCtxDetach(ctx);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&made, (uint64_t)(uintptr_t)ctx, -1, &item);
	return r;
}
#endif
