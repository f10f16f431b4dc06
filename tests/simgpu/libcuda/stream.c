// SPDX-License-Identifier: Apache-2.0
/* stream.c - the calls on streams. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
	if (!stream || (flags & ~CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	if (priority < -5)
		priority = -5;
	*stream = stream_new(drv_current(), false, flags, priority > 0 ? 0 : priority);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	ENTER(NEED_CTX);
	return drv_leave(create(stream, flags, 0));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	ENTER(NEED_CTX);
	return drv_leave(create(stream, flags, priority));
}

CUresult cuStreamDestroy_v2(CUstream hStream)
{
	CUstream s;

	ENTER(NEED_CTX);
	if (!hStream || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD)
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	s = stream_of(hStream);
	if (!s)
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	/* the call returns at once; the stream goes when its work is done */
	s->dying = true;
	capture_drop_stream(s);
	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream hStream)
{
	return cuStreamDestroy_v2(hStream);
}

static CUresult enter_stream(const char *call, CUstream *s)
{
	CUresult rc = drv_enter(call, NEED_CTX);

	if (rc)
		return rc;
	*s = stream_of(*s);
	return *s ? CUDA_SUCCESS : drv_leave(CUDA_ERROR_INVALID_HANDLE);
}

/* Whether its work is done cannot be asked of a stream that is captured. */
static CUresult ask(CUstream s)
{
	if (!s->capture)
		return capture_unsafe();
	s->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(CUstream hStream)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);
	uint32_t slot, gen;
	uint64_t tail;

	if (rc)
		return rc;
	rc = ask(s);
	if (!rc && s == s->ctx->legacy) /* the legacy stream waits for the blocking ones */
		return drv_leave(drv_ctx_sync(s->ctx));
	slot = s->slot;
	gen = s->gen;
	tail = drv.st->stream[slot].tail;
	if (!rc && tail)
		rc = stream_wait(slot, gen, tail - 1);
	if (!rc && tail)
		freed_seen(slot, gen, tail - 1);
	if (!rc)
		pool_at_sync();
	return drv_leave(rc);
}

CUresult cuStreamQuery(CUstream hStream)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);
	bool idle;

	if (rc)
		return rc;
	rc = ask(s);
	if (rc)
		return drv_leave(rc);
	drv_model_lock();
	sim_advance_all(drv.st);
	idle = drv.st->stream[s->slot].done == drv.st->stream[s->slot].tail;
	drv_model_unlock();
	effects_take();
	return drv_leave(idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);

	if (rc)
		return rc;
	if (!pctx)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*pctx = s->ctx;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned *flags)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);

	if (rc)
		return rc;
	if (!flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = s->flags;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);

	if (rc)
		return rc;
	if (!priority)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*priority = s->priority;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *id)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);

	if (rc)
		return rc;
	if (!id)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*id = s->id;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice *dev)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);

	if (rc)
		return rc;
	if (!dev)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*dev = s->ctx->dev;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback fn, void *data, unsigned flags)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);
	struct effect *e;

	if (rc)
		return rc;
	if (!fn || flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (s->capture) {
		s->capture->invalid = true;
		return drv_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	e = effect_new(EFF_CALLBACK);
	if (e) {
		e->callback = fn;
		e->data = data;
		e->stream = hStream;
	}
	return drv_leave(submit_effect(s, SIM_OWNER, SIM_OP_URGENT, 0, e));
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *data)
{
	CUstream s = hStream;
	CUresult rc = enter_stream(__func__, &s);
	struct effect *e;

	if (rc)
		return rc;
	if (!fn)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	e = effect_new(EFF_CALL);
	if (e) {
		e->fn = fn;
		e->data = data;
	}
	return drv_leave(submit_effect(s, SIM_OWNER, SIM_OP_URGENT, 0, e));
}

static CUresult value_op(const char *call, CUstream s, bool wait, CUdeviceptr addr, uint64_t value,
			 unsigned width, unsigned flags)
{
	CUresult rc = enter_stream(call, &s);
	struct effect *e;

	if (rc)
		return rc;
	if (!addr || addr % width || !block_find(addr))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	e = effect_new(wait ? EFF_WAIT_VALUE : EFF_WRITE);
	if (e) {
		e->dst = addr;
		e->value = value;
		e->width = width;
		e->flags = flags;
	}
	return drv_leave(submit_effect(s, wait ? SIM_OWNER : SIM_MARK, SIM_OP_URGENT, 0, e));
}

#define VALUE_OP(name, type, wait, width)                                             \
	CUresult name(CUstream hStream, CUdeviceptr addr, type value, unsigned flags) \
	{                                                                             \
		return value_op(__func__, hStream, wait, addr, value, width, flags);  \
	}
VALUE_OP(cuStreamWriteValue32, uint32_t, false, 4)
VALUE_OP(cuStreamWriteValue32_v2, uint32_t, false, 4)
VALUE_OP(cuStreamWriteValue64, uint64_t, false, 8)
VALUE_OP(cuStreamWriteValue64_v2, uint64_t, false, 8)
VALUE_OP(cuStreamWaitValue32, uint32_t, true, 4)
VALUE_OP(cuStreamWaitValue32_v2, uint32_t, true, 4)
VALUE_OP(cuStreamWaitValue64, uint64_t, true, 8)
VALUE_OP(cuStreamWaitValue64_v2, uint64_t, true, 8)

CUresult cuStreamBatchMemOp_v2(CUstream hStream, unsigned n, CUstreamBatchMemOpParams *ops,
			       unsigned flags)
{
	CUresult rc = n && ops && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; i < n && !rc; i++) {
		unsigned op = ops[i].operation, width = op == 4 || op == 5 ? 8 : 4;
		uint64_t value = width == 8 ? ops[i].value : (uint32_t)ops[i].value;

		if (op == 3 || op == 6) /* everything is in order anyway */
			continue;
		if (op != 1 && op != 2 && op != 4 && op != 5)
			return CUDA_ERROR_INVALID_VALUE;
		rc = value_op(__func__, hStream, op == 1 || op == 4, ops[i].address, value, width,
			      ops[i].flags);
	}
	return rc;
}

CUresult cuStreamBatchMemOp(CUstream hStream, unsigned n, CUstreamBatchMemOpParams *ops,
			    unsigned flags)
{
	return cuStreamBatchMemOp_v2(hStream, n, ops, flags);
}
