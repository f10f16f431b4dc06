// SPDX-License-Identifier: Apache-2.0
/* context.c - contexts, primary contexts and each thread's stack of them. */
#define _GNU_SOURCE
#include "local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local CUcontext stack[DRV_DEPTH];
static _Thread_local CUdevice stack_device[DRV_DEPTH]; /* still told when the context is gone */
static _Thread_local int depth;

CUcontext drv_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

bool drv_ctx_valid(CUcontext ctx)
{
	for (CUcontext c = drv.contexts; c; c = c->next)
		if (c == ctx)
			return true;
	return false;
}

static void push(CUcontext ctx)
{
	stack_device[depth] = ctx->dev;
	stack[depth++] = ctx;
}

/* The process joins the machine with its first context. */
static CUresult join_machine(void)
{
	int slot;

	if (drv.proc >= 0)
		return CUDA_SUCCESS;
	slot = sim_proc_add(drv.st);
	if (slot < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	drv.proc = slot;
	if (drv.server)
		sim_space_open(drv.st, (uint32_t)slot);
	return CUDA_SUCCESS;
}

static CUresult context_slot(CUdevice dev, int *slot)
{
	uint32_t card = drv.card[dev];
	CUresult rc;

	drv_model_lock();
	sim_advance_all(drv.st);
	rc = join_machine();
	if (!rc && drv.st->card[card].lost)
		rc = (CUresult)drv.st->card[card].lost;
	if (!rc) {
		*slot = sim_ctx_add(drv.st, (uint32_t)drv.proc, card);
		if (*slot < 0)
			rc = *slot == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
					      : CUDA_ERROR_OPERATING_SYSTEM;
		else
			drv.st->ctx[*slot].server = (uint32_t)drv.server;
	}
	drv_model_unlock();
	return rc;
}

static CUresult context_new(CUdevice dev, unsigned flags, bool primary, CUcontext *out)
{
	CUcontext c = calloc(1, sizeof(*c));
	CUresult rc;

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = context_slot(dev, &c->slot);
	if (rc) {
		free(c);
		return rc;
	}
	c->magic = MAGIC_CTX;
	c->card = drv.card[dev];
	c->dev = dev;
	c->flags = flags;
	c->api_version = 13000;
	c->primary = primary;
	c->refs = 1;
	c->id = ++drv.ids;
	c->limit[CU_LIMIT_STACK_SIZE] = 1024;
	c->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 7864320;
	c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608;
	c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	c->next = drv.contexts;
	drv.contexts = c;
	c->legacy = stream_new(c, true, 0, 0);
	if (!c->legacy) {
		drv.contexts = c->next;
		drv_model_lock();
		sim_ctx_drop(drv.st, (uint32_t)c->slot);
		drv_model_unlock();
		free(c);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (primary)
		drv.primary[dev] = c;
	effects_start_thread();
	checkpoint_start_thread();
	rm_announce(c);
	rm_usable(c);
	*out = c;
	return CUDA_SUCCESS;
}

static void context_destroy(CUcontext c)
{
	CUcontext *link = &drv.contexts;

	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	while (c->streams)
		stream_release(c->streams);
	mem_drop_context(c);
	array_drop_context(c);
	mem_uncharge(c->card, c->heap_bytes);
	drv_model_lock();
	sim_ctx_drop(drv.st, (uint32_t)c->slot);
	drv_model_unlock();
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	if (c->primary)
		drv.primary[c->dev] = NULL;
	/* the thread's own top goes with it; other threads keep a dead handle */
	if (depth && stack[depth - 1] == c && !c->primary)
		depth--;
	rm_release(c);
	c->magic = 0;
	free(c);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	CUresult rc;

	ENTER(NEED_INIT);
	if (!pctx)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	if (depth == DRV_DEPTH)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	rc = context_new(dev, flags, false, pctx);
	if (!rc)
		push(*pctx);
	return drv_leave(rc);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned flags, CUdevice dev)
{
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int n, unsigned flags,
			CUdevice dev)
{
	return params || n ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
	(void)params; /* execution affinity and graphics do not exist here */
	return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	ENTER(NEED_INIT);
	if (!drv_ctx_valid(ctx) || ctx->primary)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	context_destroy(ctx);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
	return cuCtxDestroy_v2(ctx);
}

static CUresult primary_retain(CUcontext *pctx, CUdevice dev)
{
	CUresult rc = CUDA_SUCCESS;

	/* First: while it is made, drv.lock is free, and another thread may release its own. */
	drv.primary_refs[dev]++;
	if (!drv.primary[dev])
		rc = context_new(dev, drv.primary_flags[dev], true, pctx);
	if (rc)
		drv.primary_refs[dev]--;
	else
		*pctx = drv.primary[dev];
	return rc;
}

static CUresult primary_release(CUdevice dev)
{
	if (!drv.primary_refs[dev])
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--drv.primary_refs[dev] == 0 && drv.primary[dev])
		context_destroy(drv.primary[dev]);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	ENTER(NEED_INIT);
	if (!pctx)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	return drv_leave(primary_retain(pctx, dev));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	return drv_leave(primary_release(dev));
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

/* The context ends, the references to it do not: the next to retain it makes it anew. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	if (drv.primary[dev])
		context_destroy(drv.primary[dev]);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

struct CUgreenCtx_st {
	uint32_t magic;
	CUdevice dev;
};

/* A part of the device: it keeps the primary context, and has nothing else here. */
CUresult cuGreenCtxCreate(CUgreenCtx *pctx, void *desc, CUdevice dev, unsigned flags)
{
	CUgreenCtx g;
	CUcontext c;
	CUresult rc;

	(void)desc;
	ENTER(NEED_INIT);
	if (!pctx || !flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	g = calloc(1, sizeof(*g));
	if (!g)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	rc = primary_retain(&c, dev);
	if (rc) {
		free(g);
		return drv_leave(rc);
	}
	g->magic = MAGIC_GREEN;
	g->dev = dev;
	*pctx = g;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxDestroy(CUgreenCtx ctx)
{
	CUdevice dev;

	ENTER(NEED_INIT);
	if (!ctx || ctx->magic != MAGIC_GREEN)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	dev = ctx->dev;
	ctx->magic = 0;
	free(ctx);
	return drv_leave(primary_release(dev));
}

CUresult cuCtxFromGreenCtx(CUcontext *pctx, CUgreenCtx ctx)
{
	ENTER(NEED_INIT);
	if (!pctx || !ctx || ctx->magic != MAGIC_GREEN || !drv.primary[ctx->dev])
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	*pctx = drv.primary[ctx->dev];
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned flags)
{
	ENTER(NEED_CTX);
	if (!pctx || flags || drv_current()->primary)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*pctx = drv_current();
	(*pctx)->refs++;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxDetach(CUcontext ctx)
{
	ENTER(NEED_CTX);
	if (ctx != drv_current() || ctx->primary)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--ctx->refs == 0)
		context_destroy(ctx);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	if (flags)
		*flags = drv.primary_flags[dev];
	if (active)
		*active = drv.primary[dev] != NULL;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags)
{
	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	drv.primary_flags[dev] = flags;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTER(NEED_INIT);
	if (!drv_ctx_valid(ctx) || depth == DRV_DEPTH)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	push(ctx);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	ENTER(NEED_INIT);
	if (!depth)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	depth--;
	if (pctx)
		*pctx = stack[depth];
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	ENTER(NEED_INIT);
	if (ctx && !drv_ctx_valid(ctx))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (depth)
		depth--;
	if (ctx)
		push(ctx);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	ENTER(NEED_INIT);
	if (!pctx)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*pctx = drv_current();
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	ENTER(NEED_INIT);
	if (!dev || !depth)
		return drv_leave(dev ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
	*dev = stack_device[depth - 1];
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
	ENTER(NEED_INIT);
	if (!dev || !drv_ctx_valid(ctx ? ctx : drv_current()))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	*dev = (ctx ? ctx : drv_current())->dev;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	ENTER(NEED_INIT);
	if (!ctx)
		ctx = drv_current();
	if (!id || !drv_ctx_valid(ctx))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	*id = ctx->id;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned *version)
{
	ENTER(NEED_INIT);
	if (!ctx)
		ctx = drv_current();
	if (!version || !drv_ctx_valid(ctx))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	*version = ctx->api_version;
	return drv_leave(CUDA_SUCCESS);
}

/* The work that is queued now, in whatever stream; work that comes later, and
 * streams that go away meanwhile, do not matter. */
CUresult drv_ctx_sync(CUcontext ctx)
{
	CUresult rc = capture_unsafe();
	uint32_t slot = (uint32_t)ctx->slot;
	uint64_t until = drv.st->ctx[slot].seq;
	uint32_t stream;
	uint64_t index;

	while (!rc) {
		bool pending;

		drv_model_lock();
		pending = sim_pending(drv.st, slot, until, &stream, &index);
		drv_model_unlock();
		if (!pending)
			break;
		rc = stream_wait(stream, drv.st->stream[stream].gen, index);
	}
	effects_take();
	if (!rc) {
		freed_all_seen(NULL);
		pool_at_sync();
	}
	return rc;
}

CUresult cuCtxSynchronize(void)
{
	ENTER(NEED_CTX);
	return drv_leave(drv_ctx_sync(drv_current()));
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	ENTER(NEED_INIT);
	if (!ctx)
		ctx = drv_current();
	return drv_leave(drv_ctx_valid(ctx) ? drv_ctx_sync(ctx) : CUDA_ERROR_INVALID_CONTEXT);
}
