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

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	BOUNDARY(vgpu_real.cuEventRecord, vgpu_stream(stream, false),
		 vgpu_real.cuEventRecord(event, stream));
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	BOUNDARY(vgpu_real.cuEventRecord_ptsz, vgpu_stream(stream, true),
		 vgpu_real.cuEventRecord_ptsz(event, stream));
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	BOUNDARY(vgpu_real.cuEventRecordWithFlags, vgpu_stream(stream, false),
		 vgpu_real.cuEventRecordWithFlags(event, stream, flags));
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
	BOUNDARY(vgpu_real.cuEventRecordWithFlags_ptsz, vgpu_stream(stream, true),
		 vgpu_real.cuEventRecordWithFlags_ptsz(event, stream, flags));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	OTHER_WORK(vgpu_real.cuStreamWaitEvent, vgpu_stream(stream, false),
		   vgpu_real.cuStreamWaitEvent(stream, event, flags));
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
	OTHER_WORK(vgpu_real.cuStreamWaitEvent_ptsz, vgpu_stream(stream, true),
		   vgpu_real.cuStreamWaitEvent_ptsz(stream, event, flags));
}

CUresult cuLaunchHostFunc(CUstream stream, void (*fn)(void *), void *data)
{
	OTHER_WORK(vgpu_real.cuLaunchHostFunc, vgpu_stream(stream, false),
		   vgpu_real.cuLaunchHostFunc(stream, fn, data));
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*fn)(void *), void *data)
{
	OTHER_WORK(vgpu_real.cuLaunchHostFunc_ptsz, vgpu_stream(stream, true),
		   vgpu_real.cuLaunchHostFunc_ptsz(stream, fn, data));
}

CUresult cuLaunchHostFunc_v2(CUstream stream, void (*fn)(void *), void *data, unsigned mode)
{
	OTHER_WORK(vgpu_real.cuLaunchHostFunc_v2, vgpu_stream(stream, false),
		   vgpu_real.cuLaunchHostFunc_v2(stream, fn, data, mode));
}

CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, void (*fn)(void *), void *data, unsigned mode)
{
	OTHER_WORK(vgpu_real.cuLaunchHostFunc_v2_ptsz, vgpu_stream(stream, true),
		   vgpu_real.cuLaunchHostFunc_v2_ptsz(stream, fn, data, mode));
}

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

/* What another API's work, or an engine beside the multiprocessors, takes. */
#define BESIDE(name, per_thread, params, ...)                               \
	CUresult name params                                                \
	{                                                                   \
		OTHER_WORK(vgpu_real.name, vgpu_stream(stream, per_thread), \
			   vgpu_real.name(__VA_ARGS__));                    \
	}
BESIDE(cuWaitExternalSemaphoresAsync, false,
       (const void *semaphores, const void *params, unsigned n, CUstream stream), semaphores,
       params, n, stream)
BESIDE(cuWaitExternalSemaphoresAsync_ptsz, true,
       (const void *semaphores, const void *params, unsigned n, CUstream stream), semaphores,
       params, n, stream)
BESIDE(cuMemBatchDecompressAsync, false,
       (void *params, size_t n, unsigned flags, size_t *error, CUstream stream), params, n, flags,
       error, stream)
BESIDE(cuMemBatchDecompressAsync_ptsz, true,
       (void *params, size_t n, unsigned flags, size_t *error, CUstream stream), params, n, flags,
       error, stream)

CUresult cuStreamAddCallback(CUstream stream, void *fn, void *data, unsigned flags)
{
	OTHER_WORK(vgpu_real.cuStreamAddCallback, vgpu_stream(stream, false),
		   vgpu_real.cuStreamAddCallback(stream, fn, data, flags));
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, void *fn, void *data, unsigned flags)
{
	OTHER_WORK(vgpu_real.cuStreamAddCallback_ptsz, vgpu_stream(stream, true),
		   vgpu_real.cuStreamAddCallback_ptsz(stream, fn, data, flags));
}

/* Waits for a value in memory, in every version. */
#define WAIT_VALUE(name, type, per_thread)                                           \
	CUresult name(CUstream stream, CUdeviceptr addr, type value, unsigned flags) \
	{                                                                            \
		OTHER_WORK(vgpu_real.name, vgpu_stream(stream, per_thread),          \
			   vgpu_real.name(stream, addr, value, flags));              \
	}
WAIT_VALUE(cuStreamWaitValue32, uint32_t, false)
WAIT_VALUE(cuStreamWaitValue32_ptsz, uint32_t, true)
WAIT_VALUE(cuStreamWaitValue32_v2, uint32_t, false)
WAIT_VALUE(cuStreamWaitValue32_v2_ptsz, uint32_t, true)
WAIT_VALUE(cuStreamWaitValue64, uint64_t, false)
WAIT_VALUE(cuStreamWaitValue64_ptsz, uint64_t, true)
WAIT_VALUE(cuStreamWaitValue64_v2, uint64_t, false)
WAIT_VALUE(cuStreamWaitValue64_v2_ptsz, uint64_t, true)

#define BATCH_MEM_OP(name, per_thread)                                        \
	CUresult name(CUstream stream, unsigned n, void *ops, unsigned flags) \
	{                                                                     \
		OTHER_WORK(vgpu_real.name, vgpu_stream(stream, per_thread),   \
			   vgpu_real.name(stream, n, ops, flags));            \
	}
BATCH_MEM_OP(cuStreamBatchMemOp, false)
BATCH_MEM_OP(cuStreamBatchMemOp_ptsz, true)
BATCH_MEM_OP(cuStreamBatchMemOp_v2, false)
BATCH_MEM_OP(cuStreamBatchMemOp_v2_ptsz, true)

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size)
{
	WAIT(vgpu_real.cuMemcpyDtoH_v2, NULL, vgpu_real.cuMemcpyDtoH_v2(dst, src, size));
}

CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t size)
{
	WAIT(vgpu_real.cuMemcpyDtoH_v2_ptds, NULL, vgpu_real.cuMemcpyDtoH_v2_ptds(dst, src, size));
}

/* Between host and card: the copy engines' work. */
#define COPY(real, stream, size, call)                          \
	do {                                                    \
		END_BATCH(real, stream, (size) >= SMALL_BYTES); \
		return call;                                    \
	} while (0)

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	COPY(vgpu_real.cuMemcpyDtoHAsync_v2, vgpu_stream(stream, false), size,
	     vgpu_real.cuMemcpyDtoHAsync_v2(dst, src, size, stream));
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src, size_t size, CUstream stream)
{
	COPY(vgpu_real.cuMemcpyDtoHAsync_v2_ptsz, vgpu_stream(stream, true), size,
	     vgpu_real.cuMemcpyDtoHAsync_v2_ptsz(dst, src, size, stream));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	if (size < SMALL_BYTES && likely(vgpu_real.cuMemcpyHtoDAsync_v2))
		return vgpu_real.cuMemcpyHtoDAsync_v2(dst, src, size, stream);
	COPY(vgpu_real.cuMemcpyHtoDAsync_v2, vgpu_stream(stream, false), size,
	     vgpu_real.cuMemcpyHtoDAsync_v2(dst, src, size, stream));
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst, const void *src, size_t size, CUstream stream)
{
	if (size < SMALL_BYTES && likely(vgpu_real.cuMemcpyHtoDAsync_v2_ptsz))
		return vgpu_real.cuMemcpyHtoDAsync_v2_ptsz(dst, src, size, stream);
	COPY(vgpu_real.cuMemcpyHtoDAsync_v2_ptsz, vgpu_stream(stream, true), size,
	     vgpu_real.cuMemcpyHtoDAsync_v2_ptsz(dst, src, size, stream));
}

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

void vgpu_captures_in_child(void)
{
	pthread_mutex_init(&origins_lock, NULL);
	vgpu_captures = vgpu_captures_begin = 0;
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
#define CAPTURE(real, call)                                                    \
	do {                                                                   \
		CUresult result;                                               \
                                                                               \
		vgpu_need_cuda();                                              \
		if (!(real))                                                   \
			return CUDA_ERROR_NO_DEVICE;                           \
		vgpu_gate_boundary(NULL, false);                               \
		capture_begins();                                              \
		result = call;                                                 \
		__atomic_sub_fetch(&vgpu_captures_begin, 1, __ATOMIC_SEQ_CST); \
		if (result != CUDA_SUCCESS)                                    \
			capture_ends();                                        \
		else                                                           \
			origin(NULL, stream);                                  \
		return result;                                                 \
	} while (0)

CUresult cuStreamBeginCapture(CUstream stream)
{
	CAPTURE(vgpu_real.cuStreamBeginCapture, vgpu_real.cuStreamBeginCapture(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	CAPTURE(vgpu_real.cuStreamBeginCapture_ptsz, vgpu_real.cuStreamBeginCapture_ptsz(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	CAPTURE(vgpu_real.cuStreamBeginCapture_v2, vgpu_real.cuStreamBeginCapture_v2(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	CAPTURE(vgpu_real.cuStreamBeginCapture_v2_ptsz,
		vgpu_real.cuStreamBeginCapture_v2_ptsz(stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *deps,
				     const void *data, size_t n, int mode)
{
	CAPTURE(vgpu_real.cuStreamBeginCaptureToGraph,
		vgpu_real.cuStreamBeginCaptureToGraph(stream, graph, deps, data, n, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *deps,
					  const void *data, size_t n, int mode)
{
	CAPTURE(vgpu_real.cuStreamBeginCaptureToGraph_ptsz,
		vgpu_real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, deps, data, n, mode));
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *mismatch,
				       void *data)
{
	CAPTURE(vgpu_real.cuStreamBeginRecaptureToGraph,
		vgpu_real.cuStreamBeginRecaptureToGraph(stream, mode, graph, mismatch, data));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph,
					    void *mismatch, void *data)
{
	CAPTURE(vgpu_real.cuStreamBeginRecaptureToGraph_ptsz,
		vgpu_real.cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, mismatch, data));
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, void *params)
{
	CAPTURE(vgpu_real.cuStreamBeginCaptureToCig,
		vgpu_real.cuStreamBeginCaptureToCig(stream, params));
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *params)
{
	CAPTURE(vgpu_real.cuStreamBeginCaptureToCig_ptsz,
		vgpu_real.cuStreamBeginCaptureToCig_ptsz(stream, params));
}

static bool captures(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return vgpu_real.cuStreamIsCapturing &&
	       vgpu_real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* call ends the capture of a stream. Also ended when it had been invalidated and the call
 * fails; not when it is of another stream. */
#define CAPTURE_END(real, per_thread, call)                    \
	do {                                                   \
		CUstream of = vgpu_stream(stream, per_thread); \
		CUresult result;                               \
		bool before;                                   \
                                                               \
		vgpu_need_cuda();                              \
		if (!(real))                                   \
			return CUDA_ERROR_NO_DEVICE;           \
		before = captures(of);                         \
		result = call;                                 \
		if (before && !captures(of)) {                 \
			if (stream)                            \
				origin(stream, NULL);          \
			capture_ends();                        \
		}                                              \
		return result;                                 \
	} while (0)

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	CAPTURE_END(vgpu_real.cuStreamEndCapture, false,
		    vgpu_real.cuStreamEndCapture(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	CAPTURE_END(vgpu_real.cuStreamEndCapture_ptsz, true,
		    vgpu_real.cuStreamEndCapture_ptsz(stream, graph));
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
	CAPTURE_END(vgpu_real.cuStreamEndCaptureToCig, false,
		    vgpu_real.cuStreamEndCaptureToCig(stream));
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
	CAPTURE_END(vgpu_real.cuStreamEndCaptureToCig_ptsz, true,
		    vgpu_real.cuStreamEndCaptureToCig_ptsz(stream));
}
#endif
