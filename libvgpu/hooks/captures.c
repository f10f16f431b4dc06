/* SPDX-License-Identifier: Apache-2.0 */
/* captures.c - the life of a stream; captures, which are never touched. */
#include "../driver/captures.h"
#include "../base/table.h"
#include "../compute/compute.h"
#include "../driver/prototypes.h"
#include "../job/job.h"
#include "../memory/account.h"
#include "context.h"

/* Captured streams. The owner of an entry is the stream's context. The default stream of a thread
 * also has the thread. A capture ends with its stream, its context or that thread: then the program
 * does not end it. */
static VGPU_TABLE(open_captures);

static void capture_begins(void)
{
	ADD(&vgpu_captures_begin, 1);
	ADD(&vgpu_captures, 1);
	vgpu_gate_capture();
}

static void capture_gone(const struct vgpu_item *item)
{
	(void)item;
	SUB(&vgpu_captures, 1);
}

static CUcontext current_context(void)
{
	CUcontext ctx = NULL;

	if (vgpu_real.cuCtxGetCurrent)
		vgpu_real.cuCtxGetCurrent(&ctx);
	return ctx;
}

/* Each thread has a default stream of its own in each context. */
static uint64_t key_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD
		       ? vgpu_mix((uint64_t)pthread_self(), (uint64_t)(uintptr_t)current_context())
		       : (uint64_t)(uintptr_t)stream;
}

static void capture_ends(uint64_t key)
{
	vgpu_table_drop(&open_captures, vgpu_table_detach(&open_captures, key), capture_gone);
}

static bool of_thread(const struct vgpu_item *item, uint64_t thread)
{
	return item->other == thread;
}

static void thread_ends(void *unused)
{
	(void)unused;
	vgpu_table_drop(&open_captures,
			vgpu_table_detach_if(&open_captures, (uint64_t)pthread_self(), of_thread),
			capture_gone);
}

static pthread_key_t threads;
static bool threads_seen;

static void make_key(void)
{
	threads_seen = pthread_key_create(&threads, thread_ends) == 0;
}

/* The entry of a capture. Call this before the capture begins: questions could spoil it. */
static struct vgpu_item capture_of(CUstream stream)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct vgpu_item item = {.key = key_of(stream)};
	CUcontext ctx = NULL;

	if (stream == CU_STREAM_PER_THREAD) {
		item.other = (uint64_t)pthread_self();
		pthread_once(&once, make_key);
		if (threads_seen)
			pthread_setspecific(threads, &threads);
	} else if (vgpu_real.cuStreamGetCtx) {
		vgpu_real.cuStreamGetCtx(stream, &ctx);
	}
	item.owner = (uint64_t)(uintptr_t)(ctx ? ctx : current_context());
	return item;
}

/* Without memory for its entry, a capture counts until the process ends. */
static CUresult capture_began(CUresult r, const struct vgpu_item *item)
{
	SUB(&vgpu_captures_begin, 1);
	if (r == CUDA_SUCCESS) {
		capture_ends(item->key); /* of a stream that ended unseen, of the same handle */
		vgpu_table_put(&open_captures, item);
	} else {
		capture_gone(item);
	}
	return r;
}

void vgpu_captures_ended(CUcontext ctx)
{
	if (ctx && LOAD(&open_captures.count))
		vgpu_table_end(&open_captures, (uint64_t)(uintptr_t)ctx, capture_gone);
}

/* The watcher must not record an event in a stream that is gone. */
#define DESTROY(name)                                                                   \
	CUresult name(CUstream stream)                                                  \
	{                                                                               \
		VGPU_NEED_CUDA(name);                                                   \
		if (vgpu_state.grant)                                                   \
			vgpu_gate_drop_stream(stream);                                  \
		return VGPU_FREE(&open_captures, vgpu_capturing() ? key_of(stream) : 0, \
				 vgpu_real.name(stream), capture_gone);                 \
	}
DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)

/* Counted before the driver begins, so that no thread of ours records an event in
 * that stream in between; counted down when it has ended or never began. */
#define CAPTURE(name, per_thread, params, args)                                      \
	CUresult name params                                                         \
	{                                                                            \
		VGPU_NEED_CUDA(name);                                                \
		vgpu_gate_boundary(NULL, false);                                     \
		struct vgpu_item item = capture_of(vgpu_stream(stream, per_thread)); \
		capture_begins();                                                    \
		return capture_began(vgpu_real.name args, &item);                    \
	}
#define CU_CAPTURE_PTSZ(name, params, args) \
	CAPTURE(name, false, params, args)  \
	CAPTURE(name##_ptsz, true, params, args)
#define CU(name, params)
#include "../driver/hooks.def"

/* A stream may join a capture by the event that it waits for. An event of this library's in it would be a
 * part of that from then on, and to ask for it would spoil the capture. */
#define JOIN(name, per_thread)                                                     \
	CUresult name(CUstream stream, CUevent event, unsigned flags)              \
	{                                                                          \
		VGPU_NEED_CUDA(name);                                              \
		if (unlikely(LOAD(&vgpu_gate_any)))                                \
			vgpu_gate_boundary(vgpu_stream(stream, per_thread), true); \
		if (likely(!vgpu_capturing()))                                     \
			return vgpu_real.name(stream, event, flags);               \
		ADD(&vgpu_captures_begin, 1);                                      \
		vgpu_gate_capture();                                               \
		CUresult result = vgpu_real.name(stream, event, flags);            \
		SUB(&vgpu_captures_begin, 1);                                      \
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
                                                               \
		VGPU_NEED_CUDA(name);                          \
		bool before = vgpu_captured(of, false);        \
		CUresult result = vgpu_real.name(__VA_ARGS__); \
		if (before && !vgpu_captured(of, false))       \
			capture_ends(key_of(of));              \
		return result;                                 \
	}
CAPTURE_END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), stream, graph)
CAPTURE_END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), stream, graph)
CAPTURE_END(cuStreamEndCaptureToCig, false, (CUstream stream), stream)
CAPTURE_END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), stream)
