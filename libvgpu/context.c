/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: where channel groups come from. Slices are set as soon
 * as a context is usable, before the program gets it.
 */
#ifdef VGPU_PRELOAD
#include <string.h>

#include "vgpu.h"

/* Primary contexts are retained many times and made once. */
static int primary_refs[VGPU_MAX_CARDS];

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
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuInit)
		return CUDA_ERROR_NO_DEVICE;
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
	} else if (first) {
		began(card);
	}
	return r;
}

static CUresult primary_release(CUresult (*real)(CUdevice), CUdevice dev, bool all)
{
	CUresult r;
	int card, refs;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_of_device(dev);
	if (card >= 0 && (all || __atomic_load_n(&primary_refs[card], __ATOMIC_SEQ_CST) == 1))
		vgpu_gate_drop_context(NULL);
	r = real(dev);
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

CUresult cuGreenCtxDestroy(CUgreenCtx ctx)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGreenCtxDestroy)
		return CUDA_ERROR_NO_DEVICE;
	/* Streams of it are gone afterwards: forget batches on all of them. */
	if (vgpu_state.grant)
		vgpu_gate_drop_context(NULL);
	r = vgpu_real.cuGreenCtxDestroy(ctx);
	vgpu_uses_forget();
	return r;
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext ctx)
{
	int card = -1;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_state.grant && ctx && vgpu_real.cuCtxPushCurrent_v2 &&
	    vgpu_real.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS) {
		CUcontext popped;

		card = vgpu_card_current();
		vgpu_real.cuCtxPopCurrent_v2(&popped);
	}
	if (card >= 0)
		vgpu_gate_drop_context(ctx);
	r = real(ctx);
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
