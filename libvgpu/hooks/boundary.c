/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary.c - calls that end a batch of work, because what follows is a wait
 * and not work.
 */
#include "../compute/waits.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "../memory/pool.h"

#define END_BATCH(real, stream, other)                                           \
	do {                                                                     \
		if (unlikely(!(real))) {                                         \
			vgpu_need_cuda();                                        \
			if (!(real))                                             \
				return CUDA_ERROR_NO_DEVICE;                     \
		}                                                                \
		if (unlikely(__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED))) \
			vgpu_gate_boundary(stream, other);                       \
	} while (0)

static void waited(CUstream stream, CUevent event, uint64_t began)
{
	vgpu_waited(stream, event, began);
	if (vgpu_state.grant)
		vgpu_pools_waited();
}

/* The host waits for all work of a stream; NULL: of the context. */
#define WAITS(name, stream, params, ...)                 \
	CUresult name params                             \
	{                                                \
		CUstream waits = stream;                 \
		CUresult result;                         \
		uint64_t began;                          \
                                                         \
		END_BATCH(vgpu_real.name, waits, false); \
		began = vgpu_wait_begins();              \
		result = vgpu_real.name(__VA_ARGS__);    \
		waited(waits, NULL, began);              \
		return result;                           \
	}
WAITS(cuStreamSynchronize, vgpu_stream(of, false), (CUstream of), of)
WAITS(cuStreamSynchronize_ptsz, vgpu_stream(of, true), (CUstream of), of)
WAITS(cuCtxSynchronize, NULL, (void), )
WAITS(cuCtxSynchronize_v2, NULL, (CUcontext ctx), ctx)
WAITS(cuMemcpyDtoH_v2, NULL, (void *dst, CUdeviceptr src, size_t size), dst, src, size)
WAITS(cuMemcpyDtoH_v2_ptds, CU_STREAM_PER_THREAD, (void *dst, CUdeviceptr src, size_t size), dst,
      src, size)

/* Its record has ended the batch. */
CUresult cuEventSynchronize(CUevent event)
{
	uint64_t began;
	CUresult r;

	VGPU_NEED_CUDA(cuEventSynchronize);
	began = vgpu_wait_begins();
	r = vgpu_real.cuEventSynchronize(event);
	waited(NULL, event, began);
	return r;
}

/* other: what follows in the stream is not the card's work, but takes its time there. */
#define ENDS(name, per_thread, other, params, ...)                                 \
	CUresult name params                                                       \
	{                                                                          \
		END_BATCH(vgpu_real.name, vgpu_stream(stream, per_thread), other); \
		return vgpu_real.name(__VA_ARGS__);                                \
	}
/* In both kinds of default stream. */
#define BOTH_END(name, other, params, ...)            \
	ENDS(name, false, other, params, __VA_ARGS__) \
	ENDS(name##_ptsz, true, other, params, __VA_ARGS__)

#define RECORDS(name, per_thread, params, ...)                                     \
	CUresult name params                                                       \
	{                                                                          \
		VGPU_NEED_CUDA(name);                                              \
		if (unlikely(LOAD(&vgpu_gate_any)))                                \
			vgpu_gate_record(vgpu_stream(stream, per_thread));         \
		vgpu_waits_recorded(event, vgpu_stream(stream, per_thread));       \
		return vgpu_real.name(__VA_ARGS__);                                \
	}
#define BOTH_RECORD(name, params, ...)            \
	RECORDS(name, false, params, __VA_ARGS__) \
	RECORDS(name##_ptsz, true, params, __VA_ARGS__)
BOTH_RECORD(cuEventRecord, (CUevent event, CUstream stream), event, stream)
BOTH_RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), event, stream,
	    flags)
BOTH_END(cuLaunchHostFunc, true, (CUstream stream, void (*fn)(void *), void *data), stream, fn,
	 data)
BOTH_END(cuLaunchHostFunc_v2, true,
	 (CUstream stream, void (*fn)(void *), void *data, unsigned mode), stream, fn, data, mode)
BOTH_END(cuStreamAddCallback, true, (CUstream stream, void *fn, void *data, unsigned flags), stream,
	 fn, data, flags)

/* What another API's work, or an engine beside the multiprocessors, takes. */
BOTH_END(cuWaitExternalSemaphoresAsync, true,
	 (const void *semaphores, const void *params, unsigned n, CUstream stream), semaphores,
	 params, n, stream)
BOTH_END(cuMemBatchDecompressAsync, true,
	 (void *params, size_t n, unsigned flags, size_t *error, CUstream stream), params, n, flags,
	 error, stream)

/* Waits for a value in memory, in every version. */
#define WAIT_VALUE(name, type)                                                                \
	BOTH_END(name, true, (CUstream stream, CUdeviceptr addr, type value, unsigned flags), \
		 stream, addr, value, flags)
WAIT_VALUE(cuStreamWaitValue32, uint32_t)
WAIT_VALUE(cuStreamWaitValue32_v2, uint32_t)
WAIT_VALUE(cuStreamWaitValue64, uint64_t)
WAIT_VALUE(cuStreamWaitValue64_v2, uint64_t)
BOTH_END(cuStreamBatchMemOp, true, (CUstream stream, unsigned n, void *ops, unsigned flags), stream,
	 n, ops, flags)
BOTH_END(cuStreamBatchMemOp_v2, true, (CUstream stream, unsigned n, void *ops, unsigned flags),
	 stream, n, ops, flags)

/* In all streams of a context, whichever they are. */
#define CONTEXT_ENDS(name, context, other)              \
	CUresult name(context ctx, CUevent event)       \
	{                                               \
		END_BATCH(vgpu_real.name, NULL, other); \
		return vgpu_real.name(ctx, event);      \
	}
CONTEXT_ENDS(cuCtxWaitEvent, CUcontext, true)
CONTEXT_ENDS(cuGreenCtxWaitEvent, CUgreenCtx, true)
CONTEXT_ENDS(cuCtxRecordEvent, CUcontext, false)
CONTEXT_ENDS(cuGreenCtxRecordEvent, CUgreenCtx, false)

/* Between host and card: the copy engines' work. */
BOTH_END(cuMemcpyDtoHAsync_v2, size >= SMALL_BYTES,
	 (void *dst, CUdeviceptr src, size_t size, CUstream stream), dst, src, size, stream)

#define HTOD(name, per_thread)                                                        \
	CUresult name(CUdeviceptr dst, const void *src, size_t size, CUstream stream) \
	{                                                                             \
		if (size >= SMALL_BYTES || unlikely(!vgpu_real.name))                 \
			END_BATCH(vgpu_real.name, vgpu_stream(stream, per_thread),    \
				  size >= SMALL_BYTES);                               \
		return vgpu_real.name(dst, src, size, stream);                        \
	}
HTOD(cuMemcpyHtoDAsync_v2, false)
HTOD(cuMemcpyHtoDAsync_v2_ptsz, true)
