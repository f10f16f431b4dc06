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
#define WAITS(name, stream, params, ...)                       \
	CUresult name params                                   \
	{                                                      \
		CUstream waits = stream;                       \
                                                               \
		END_BATCH(vgpu_real.name, waits, false);       \
		uint64_t began = vgpu_wait_begins();           \
		CUresult result = vgpu_real.name(__VA_ARGS__); \
		waited(waits, NULL, began);                    \
		return result;                                 \
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
	VGPU_NEED_CUDA(cuEventSynchronize);
	uint64_t began = vgpu_wait_begins();
	CUresult r = vgpu_real.cuEventSynchronize(event);
	waited(NULL, event, began);
	return r;
}

#define RECORDS(name, per_thread, params, ...)                               \
	CUresult name params                                                 \
	{                                                                    \
		VGPU_NEED_CUDA(name);                                        \
		if (unlikely(LOAD(&vgpu_gate_any)))                          \
			vgpu_gate_record(vgpu_stream(stream, per_thread));   \
		vgpu_waits_recorded(event, vgpu_stream(stream, per_thread)); \
		return vgpu_real.name(__VA_ARGS__);                          \
	}
#define BOTH_RECORD(name, params, ...)            \
	RECORDS(name, false, params, __VA_ARGS__) \
	RECORDS(name##_ptsz, true, params, __VA_ARGS__)
BOTH_RECORD(cuEventRecord, (CUevent event, CUstream stream), event, stream)
BOTH_RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), event, stream,
	    flags)
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

#define HTOD(name, per_thread)                                                        \
	CUresult name(CUdeviceptr dst, const void *src, size_t size, CUstream stream) \
	{                                                                             \
		if (size >= SMALL_BYTES || unlikely(!vgpu_real.name))                 \
			END_BATCH(vgpu_real.name, vgpu_stream(stream, per_thread),    \
				  size >= SMALL_BYTES);                               \
		else if (LOAD(&vgpu_gate_any))                                        \
			vgpu_count_entry();                                           \
		return vgpu_real.name(dst, src, size, stream);                        \
	}
HTOD(cuMemcpyHtoDAsync_v2, false)
HTOD(cuMemcpyHtoDAsync_v2_ptsz, true)

/* other: the call adds work of the copy engines or of another API to the stream, or a wait. */
#define ENDS(name, per_thread, params, args, other)                                \
	CUresult name params                                                       \
	{                                                                          \
		END_BATCH(vgpu_real.name, vgpu_stream(stream, per_thread), other); \
		return vgpu_real.name args;                                        \
	}
#define CU_END_PTSZ(name, params, args, other) \
	ENDS(name, false, params, args, other) \
	ENDS(name##_ptsz, true, params, args, other)
#define CU(name, params)
#include "../driver/hooks.def"
