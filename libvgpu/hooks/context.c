/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: where channel groups come from. Slices are set as soon
 * as a context is usable, before the program gets it.
 */
#include <stdlib.h>
#include <string.h>

#include "../compute/compute.h"
#include "../driver/prototypes.h"
#include "../kernel/kernel.h"
#include "../life/watcher.h"
#include "../memory/account.h"
#include "../memory/memory.h"
#include "../slices/slices.h"
#include "context.h"

bool vgpu_launches_wait;

void vgpu_context_began(int card)
{
	VGPU_NO_CANCEL;
	struct vgpu_schedule s;

	ADD(&vgpu_my(card)->contexts, 1);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)card, &s, vgpu_now())) {
		vgpu_gate_schedule(card, &s);
		vgpu_slices_apply(card, &s, VGPU_READ_BACK);
	}
	vgpu_watcher_start();
}

static VGPU_PRIVATE pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

void vgpu_context_seen(int card)
{
	VGPU_LOCK(&seen_lock);

	if (!LOAD(&vgpu_my(card)->contexts))
		vgpu_context_began(card);
}

void vgpu_context_ended(int card)
{
	uint32_t *n = &vgpu_my(card)->contexts;

	if (LOAD(n))
		SUB(n, 1);
	vgpu_overhead_context_gone(card);
}

CUresult cuInit(unsigned flags)
{
	VGPU_NEED_CUDA(cuInit);
	/* As the driver reads it. */
	const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
	if (blocking && *blocking && strcmp(blocking, "0") != 0)
		vgpu_launches_wait = true;
	vgpu_cards_init();
	CUresult r = vgpu_real.cuInit(flags);
	if (r == CUDA_SUCCESS)
		vgpu_cards_mps();
	if (r == CUDA_SUCCESS && vgpu_state.from_env)
		vgpu_env_cards();
	return r;
}

static void new_context(CUcontext ctx, int card, CUdevice dev)
{
	static uint64_t made;
	struct vgpu_item item = {.key = (uint64_t)(uintptr_t)ctx,
				 .card = card,
				 .other = (uint64_t)dev,
				 .refs = 1};

	/* Not the handle: the driver can use it again while this context still ends. */
	item.owner = VGPU_MAX_CARDS + ADD(&made, 1);

	/* Forgotten for want of memory: stays charged until the process ends. */
	vgpu_table_put(&vgpu_contexts_made, &item);
	vgpu_context_began(card);
}

#define CU_CONTEXT(name, params, args)                        \
	CUresult name params                                  \
	{                                                     \
		VGPU_NEED_CUDA(name);                         \
		if (vgpu_not_granted(dev))                    \
			return CUDA_ERROR_DEVICE_UNAVAILABLE; \
		int on = vgpu_card_of_device(dev);            \
		if (on < 0)                                   \
			return vgpu_real.name args;           \
		if (vgpu_overhead_context(on))                \
			return vgpu_oom(on, 0);               \
		vgpu_rm_creating(on);                         \
		CUresult result = vgpu_real.name args;        \
		vgpu_rm_creating(-1);                         \
		if (result == CUDA_SUCCESS)                   \
			new_context(*pctx, on, dev);          \
		else                                          \
			vgpu_overhead_context_gone(on);       \
		return result;                                \
	}

#define CU(name, params)
#include "../driver/hooks.def"

static void context_ended(const struct vgpu_item *item)
{
	vgpu_memory_ended(item->card, (CUdevice)item->other, item->owner);
	vgpu_context_ended(item->card);
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
	vgpu_gate_ends(ctx);
	struct vgpu_item *list = vgpu_freeing(&vgpu_contexts_made, (uint64_t)(uintptr_t)ctx);
	CUresult r = real(ctx);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	if (r == CUDA_SUCCESS)
		vgpu_captures_ended(ctx);
	vgpu_uses_forget();
	vgpu_freed(&vgpu_contexts_made, list, r, context_ended);
	return r;
}

#define DESTROY_CONTEXT(name)                        \
	CUresult name(CUcontext ctx)                 \
	{                                            \
		VGPU_NEED_CUDA(name);                \
		return destroy(vgpu_real.name, ctx); \
	}
DESTROY_CONTEXT(cuCtxDestroy)
DESTROY_CONTEXT(cuCtxDestroy_v2)

CUresult cuCtxAttach(CUcontext *pctx, unsigned flags)
{
	struct vgpu_item item;

	VGPU_NEED_CUDA(cuCtxAttach);
	CUresult r = vgpu_real.cuCtxAttach(pctx, flags);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&vgpu_contexts_made, (uint64_t)(uintptr_t)*pctx, 1, &item);
	return r;
}

/* The last one destroys the context; cuCtxDestroy does whatever others there are. */
CUresult cuCtxDetach(CUcontext ctx)
{
	struct vgpu_item item;

	VGPU_NEED_CUDA(cuCtxDetach);
	bool last = vgpu_state.grant &&
		    vgpu_table_get(&vgpu_contexts_made, (uint64_t)(uintptr_t)ctx, &item) &&
		    item.refs == 1;
	if (last)
		return destroy(vgpu_real.cuCtxDetach, ctx);
	CUresult r = vgpu_real.cuCtxDetach(ctx);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&vgpu_contexts_made, (uint64_t)(uintptr_t)ctx, -1, &item);
	return r;
}
