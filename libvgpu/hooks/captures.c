/* SPDX-License-Identifier: Apache-2.0 */
/* captures.c - the life of a stream; captures, which are never touched. */
#include "../driver/captures.h"
#include "../compute/compute.h"
#include "../compute/working.h"
#include "../driver/prototypes.h"
#include "../job/job.h"
#include "context.h"

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
	VGPU_NEED_CUDA(cuStreamDestroy);
	return stream_destroy(vgpu_real.cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	VGPU_NEED_CUDA(cuStreamDestroy_v2);
	return stream_destroy(vgpu_real.cuStreamDestroy_v2, stream);
}

/* Counted before the driver begins, so that no thread of ours records an event in
 * that stream in between; counted down when it has ended or never began. */
#define CAPTURE(name, params, ...)                                             \
	CUresult name params                                                   \
	{                                                                      \
		CUresult result;                                               \
                                                                               \
		VGPU_NEED_CUDA(name);                                          \
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

/* A stream may join a capture by what it waits for. An event of this library's in it would be a
 * part of that from then on, and to ask for it would spoil the capture. */
#define JOIN(name, per_thread)                                                     \
	CUresult name(CUstream stream, CUevent event, unsigned flags)              \
	{                                                                          \
		CUresult result;                                                   \
                                                                                   \
		VGPU_NEED_CUDA(name);                                              \
		if (unlikely(__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED)))   \
			vgpu_gate_boundary(vgpu_stream(stream, per_thread), true); \
		if (likely(!vgpu_capturing()))                                     \
			return vgpu_real.name(stream, event, flags);               \
		__atomic_add_fetch(&vgpu_captures_begin, 1, __ATOMIC_SEQ_CST);     \
		vgpu_gate_capture();                                               \
		result = vgpu_real.name(stream, event, flags);                     \
		__atomic_sub_fetch(&vgpu_captures_begin, 1, __ATOMIC_SEQ_CST);     \
		return result;                                                     \
	}
JOIN(cuStreamWaitEvent, false)
JOIN(cuStreamWaitEvent_ptsz, true)

/* call ends the capture of a stream. Also ended when it had been invalidated and the call
 * fails; not when it is of another stream. */
#define CAPTURE_END(name, per_thread, params, ...)             \
	CUresult name params                                   \
	{                                                      \
		CUstream of = vgpu_stream(stream, per_thread); \
		CUresult result;                               \
		bool before;                                   \
                                                               \
		VGPU_NEED_CUDA(name);                          \
		before = vgpu_captured(of, false);             \
		result = vgpu_real.name(__VA_ARGS__);          \
		if (before && !vgpu_captured(of, false)) {     \
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
