/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boundary.c - calls that end a batch of work, because what follows is a wait
 * and not work; the life of a stream; captures, which are never touched.
 */
#ifdef VGPU_PRELOAD
#include "vgpu.h"

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

#define BOUNDARY(real, stream, call)            \
	do {                                    \
		END_BATCH(real, stream, false); \
		return call;                    \
	} while (0)

/* What follows in the stream is not the card's work, but takes its time there. */
#define OTHER_WORK(real, stream, call)         \
	do {                                   \
		END_BATCH(real, stream, true); \
		return call;                   \
	} while (0)

/* The host waits for all work of a stream; NULL: of the context. */
#define WAIT(real, stream, call)                   \
	do {                                       \
		CUstream waits = stream;           \
		CUresult result;                   \
		uint64_t began;                    \
                                                   \
		END_BATCH(real, waits, false);     \
		began = vgpu_wait_begins();        \
		result = call;                     \
		if (vgpu_state.grant)              \
			vgpu_waited(waits, began); \
		return result;                     \
	} while (0)

CUresult cuStreamSynchronize(CUstream stream)
{
	WAIT(vgpu_real.cuStreamSynchronize, vgpu_stream(stream, false),
	     vgpu_real.cuStreamSynchronize(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	WAIT(vgpu_real.cuStreamSynchronize_ptsz, vgpu_stream(stream, true),
	     vgpu_real.cuStreamSynchronize_ptsz(stream));
}

CUresult cuCtxSynchronize(void)
{
	WAIT(vgpu_real.cuCtxSynchronize, NULL, vgpu_real.cuCtxSynchronize());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
	WAIT(vgpu_real.cuCtxSynchronize_v2, NULL, vgpu_real.cuCtxSynchronize_v2(ctx));
}

/* Its record has ended the batch. */
CUresult cuEventSynchronize(CUevent event)
{
	uint64_t began;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuEventSynchronize)
		return CUDA_ERROR_NO_DEVICE;
	began = vgpu_wait_begins();
	r = vgpu_real.cuEventSynchronize(event);
	if (vgpu_state.grant)
		vgpu_waited(VGPU_SOME_WORK, began);
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
BOTH_END(cuEventRecord, false, (CUevent event, CUstream stream), event, stream)
BOTH_END(cuEventRecordWithFlags, false, (CUevent event, CUstream stream, unsigned flags), event,
	 stream, flags)
BOTH_END(cuStreamWaitEvent, true, (CUstream stream, CUevent event, unsigned flags), stream, event,
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
CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	OTHER_WORK(vgpu_real.cuCtxWaitEvent, NULL, vgpu_real.cuCtxWaitEvent(ctx, event));
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx ctx, CUevent event)
{
	OTHER_WORK(vgpu_real.cuGreenCtxWaitEvent, NULL, vgpu_real.cuGreenCtxWaitEvent(ctx, event));
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	BOUNDARY(vgpu_real.cuCtxRecordEvent, NULL, vgpu_real.cuCtxRecordEvent(ctx, event));
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx ctx, CUevent event)
{
	BOUNDARY(vgpu_real.cuGreenCtxRecordEvent, NULL,
		 vgpu_real.cuGreenCtxRecordEvent(ctx, event));
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size)
{
	WAIT(vgpu_real.cuMemcpyDtoH_v2, NULL, vgpu_real.cuMemcpyDtoH_v2(dst, src, size));
}

CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t size)
{
	WAIT(vgpu_real.cuMemcpyDtoH_v2_ptds, NULL, vgpu_real.cuMemcpyDtoH_v2_ptds(dst, src, size));
}

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

/* Streams in which a capture began. A capture also ends with its stream, and then nobody
 * calls its end. */
#define ORIGINS 64
static CUstream origins[ORIGINS];
static pthread_mutex_t origins_lock = PTHREAD_MUTEX_INITIALIZER;

static void capture_begins(void)
{
	__atomic_add_fetch(&vgpu_captures_begin, 1, __ATOMIC_SEQ_CST);
	vgpu_working_capture();
	vgpu_gate_capture();
}

static void capture_ends(void)
{
	int n = __atomic_load_n(&vgpu_captures, __ATOMIC_SEQ_CST);

	while (n > 0 && !__atomic_compare_exchange_n(&vgpu_captures, &n, n - 1, false,
						     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

/* Puts now in the place of before. True: that was there. */
static bool origin(CUstream before, CUstream now)
{
	bool found = false;

	pthread_mutex_lock(&origins_lock);
	for (unsigned i = 0; i < ORIGINS && !found; i++) {
		found = origins[i] == before;
		if (found)
			origins[i] = now;
	}
	pthread_mutex_unlock(&origins_lock);
	return found;
}

void vgpu_origins_in_child(void)
{
	pthread_mutex_init(&origins_lock, NULL);
	for (unsigned i = 0; i < ORIGINS; i++)
		origins[i] = NULL;
}

/* The watcher must not record an event in a stream that is gone. */
static CUresult stream_destroy(CUresult (*real)(CUstream), CUstream stream)
{
	CUresult r;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	if (vgpu_state.grant) {
		vgpu_gate_drop_stream(stream);
		vgpu_working_forget(stream, NULL);
	}
	r = real(stream);
	if (r == CUDA_SUCCESS && vgpu_capturing() && stream && origin(stream, NULL))
		capture_ends();
	return r;
}

CUresult cuStreamDestroy(CUstream stream)
{
	vgpu_need_cuda();
	return stream_destroy(vgpu_real.cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	vgpu_need_cuda();
	return stream_destroy(vgpu_real.cuStreamDestroy_v2, stream);
}

/* Counted before the driver begins, so that no thread of ours records an event in
 * that stream in between; counted down when it has ended or never began. */
#define CAPTURE(name, params, ...)                                             \
	CUresult name params                                                   \
	{                                                                      \
		CUresult result;                                               \
                                                                               \
		vgpu_need_cuda();                                              \
		if (!vgpu_real.name)                                           \
			return CUDA_ERROR_NO_DEVICE;                           \
		vgpu_gate_boundary(NULL, false);                               \
		capture_begins();                                              \
		result = vgpu_real.name(__VA_ARGS__);                          \
		__atomic_sub_fetch(&vgpu_captures_begin, 1, __ATOMIC_SEQ_CST); \
		if (result != CUDA_SUCCESS)                                    \
			capture_ends();                                        \
		else                                                           \
			origin(NULL, stream);                                  \
		return result;                                                 \
	}
#define BOTH_CAPTURE(name, params, ...)    \
	CAPTURE(name, params, __VA_ARGS__) \
	CAPTURE(name##_ptsz, params, __VA_ARGS__)
BOTH_CAPTURE(cuStreamBeginCapture, (CUstream stream), stream)
BOTH_CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
BOTH_CAPTURE(cuStreamBeginCaptureToGraph,
	     (CUstream stream, CUgraph graph, const void *deps, const void *data, size_t n,
	      int mode),
	     stream, graph, deps, data, n, mode)
BOTH_CAPTURE(cuStreamBeginRecaptureToGraph,
	     (CUstream stream, int mode, CUgraph graph, void *mismatch, void *data), stream, mode,
	     graph, mismatch, data)
BOTH_CAPTURE(cuStreamBeginCaptureToCig, (CUstream stream, void *params), stream, params)

static bool captures(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return vgpu_real.cuStreamIsCapturing &&
	       vgpu_real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* call ends the capture of a stream. Also ended when it had been invalidated and the call
 * fails; not when it is of another stream. */
#define CAPTURE_END(name, per_thread, params, ...)             \
	CUresult name params                                   \
	{                                                      \
		CUstream of = vgpu_stream(stream, per_thread); \
		CUresult result;                               \
		bool before;                                   \
                                                               \
		vgpu_need_cuda();                              \
		if (!vgpu_real.name)                           \
			return CUDA_ERROR_NO_DEVICE;           \
		before = captures(of);                         \
		result = vgpu_real.name(__VA_ARGS__);          \
		if (before && !captures(of)) {                 \
			if (stream)                            \
				origin(stream, NULL);          \
			capture_ends();                        \
		}                                              \
		return result;                                 \
	}
CAPTURE_END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), stream, graph)
CAPTURE_END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), stream, graph)
CAPTURE_END(cuStreamEndCaptureToCig, false, (CUstream stream), stream)
CAPTURE_END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), stream)
#endif
