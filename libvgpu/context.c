/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: where channel groups come from. Slices are set as soon
 * as a context is usable, before the program gets it.
 */
#ifdef VGPU_PRELOAD
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

/* Primary contexts are retained many times and made once. */
static int primary_refs[VGPU_MAX_CARDS];
/* The handle that was given for the last one. */
static CUcontext primary[VGPU_MAX_CARDS];

static void began(int card)
{
	struct vgpu_schedule s;

	__atomic_add_fetch(&vgpu_my(card)->contexts, 1, __ATOMIC_SEQ_CST);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)card, &s)) {
		vgpu_gate_schedule(card, &s);
		vgpu_slices_apply(card, &s, true);
	}
	vgpu_watcher_start();
}

void vgpu_context_seen(int card)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (!__atomic_load_n(&vgpu_my(card)->contexts, __ATOMIC_RELAXED))
		began(card);
	pthread_mutex_unlock(&lock);
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
	/* The first reference makes the context and pays for it. */
	first = __atomic_add_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST) == 1;
	if (first && vgpu_overhead_context(card)) {
		__atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
		return vgpu_oom(card, 0);
	}
	vgpu_rm_creating(card);
	r = vgpu_real.cuDevicePrimaryCtxRetain(pctx, dev);
	vgpu_rm_creating(-1);
	if (r != CUDA_SUCCESS) {
		__atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
		if (first)
			vgpu_overhead_context_gone(card);
	} else {
		__atomic_store_n(&primary[card], *pctx, __ATOMIC_RELAXED);
		if (first)
			began(card);
	}
	return r;
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
	int card, refs;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_of_device(dev);
	if (card >= 0 && (all || __atomic_load_n(&primary_refs[card], __ATOMIC_SEQ_CST) <= 1))
		ctx = __atomic_load_n(&primary[card], __ATOMIC_RELAXED);
	vgpu_gate_ends(ctx);
	r = real(dev);
	vgpu_gate_ended(ctx, primary_gone(dev, r));
	vgpu_pools_forget_current();
	vgpu_uses_forget();
	if (r != CUDA_SUCCESS || card < 0)
		return r;
	/* A reset ends the context but not the references: the next call that
	 * needs it makes it anew. Its groups are found again by the watcher. */
	if (all)
		return r;
	refs = __atomic_sub_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
	if (refs == 0)
		ended(card);
	else if (refs < 0)
		__atomic_add_fetch(&primary_refs[card], 1, __ATOMIC_SEQ_CST);
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

/* Every form of cuCtxCreate: the same steps around another real call. */
#define CREATE(real_call)                                     \
	do {                                                  \
		int on = vgpu_card_of_device(dev);            \
		CUresult made;                                \
                                                              \
		if (vgpu_not_granted(dev))                    \
			return CUDA_ERROR_DEVICE_UNAVAILABLE; \
                                                              \
		if (on >= 0 && vgpu_overhead_context(on))     \
			return vgpu_oom(on, 0);               \
		if (on >= 0)                                  \
			vgpu_rm_creating(on);                 \
		made = real_call;                             \
		vgpu_rm_creating(-1);                         \
		if (on < 0)                                   \
			return made;                          \
		if (made == CUDA_SUCCESS)                     \
			began(on);                            \
		else                                          \
			vgpu_overhead_context_gone(on);       \
		return made;                                  \
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

/* A green context shares the primary one, and may be what makes it. */
CUresult cuGreenCtxCreate(CUgreenCtx *pctx, void *desc, CUdevice dev, unsigned flags)
{
	struct vgpu_schedule s;
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuGreenCtxCreate)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_of_device(dev);
	if (card < 0 || __atomic_load_n(&vgpu_my(card)->contexts, __ATOMIC_RELAXED) == 0)
		CREATE(vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags));
	/* The primary context is there and paid for. */
	vgpu_rm_creating(card);
	r = vgpu_real.cuGreenCtxCreate(pctx, desc, dev, flags);
	vgpu_rm_creating(-1);
	if (r == CUDA_SUCCESS && vgpu_schedule_read(vgpu_state.grant, (unsigned)card, &s))
		vgpu_slices_apply(card, &s, true);
	return r;
}

static int card_of_context(CUcontext ctx, CUdevice *dev)
{
	CUcontext popped;
	int card = -1;

	if (!vgpu_real.cuCtxPushCurrent_v2 || vgpu_real.cuCtxPushCurrent_v2(ctx) != CUDA_SUCCESS)
		return -1;
	if (vgpu_real.cuCtxGetDevice(dev) == CUDA_SUCCESS)
		card = vgpu_card_of_device(*dev);
	vgpu_real.cuCtxPopCurrent_v2(&popped);
	return card;
}

/* Its streams go with it, and with the last one of a card the primary context may. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext ctx = NULL, under = NULL;
	CUdevice dev = 0;
	CUresult r;
	int card = -1;

	vgpu_need_cuda();
	if (!vgpu_real.cuGreenCtxDestroy)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_state.grant && vgpu_real.cuCtxFromGreenCtx &&
	    vgpu_real.cuCtxFromGreenCtx(&ctx, green) == CUDA_SUCCESS)
		card = card_of_context(ctx, &dev);
	if (card >= 0)
		under = __atomic_load_n(&primary[card], __ATOMIC_RELAXED);
	vgpu_gate_ends(ctx);
	vgpu_gate_ends(under);
	r = vgpu_real.cuGreenCtxDestroy(green);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	vgpu_gate_ended(under, card >= 0 && primary_gone(dev, r));
	vgpu_uses_forget();
	return r;
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
	int card = -1;
	CUdevice dev;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_state.grant && ctx)
		card = card_of_context(ctx, &dev);
	vgpu_gate_ends(ctx);
	r = real(ctx);
	vgpu_gate_ended(ctx, r == CUDA_SUCCESS);
	vgpu_uses_forget();
	if (r == CUDA_SUCCESS && card >= 0)
		ended(card);
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
#endif
