/* SPDX-License-Identifier: Apache-2.0 */
/*
 * working.c - a sign of life for work that takes long. gresd takes a process for
 * busy while it launches. One that has launched a kernel which runs for seconds, or
 * for ever, launches nothing more; so the watcher asks the stream of its last launch
 * whether it is done, and counts another launch while it is not.
 */
#include "working.h"
#include "../driver/captures.h"
#include "../job/job.h"

/* Well below the time for which gresd believes a launch. */
#define ASK_NS 50000000u

static struct {
	CUcontext ctx;
	CUstream stream; /* NULL: nothing was launched, or it is gone */
} last[VGPU_MAX_CARDS];

/* Held while a stream is asked: it is not destroyed, and begins no capture, then. */
static pthread_mutex_t ask_lock = PTHREAD_MUTEX_INITIALIZER;
/* This thread holds it: a callback of the driver's has come back. */
static __thread bool asking;

static void hold(void)
{
	if (!asking)
		pthread_mutex_lock(&ask_lock);
}

static void release(void)
{
	if (!asking)
		pthread_mutex_unlock(&ask_lock);
}

static struct {
	uint64_t launches, asked_ns;
	bool done;
} seen[VGPU_MAX_CARDS];

void vgpu_working_note(int card, CUstream stream)
{
	CUcontext ctx = NULL;

	if (likely(__atomic_load_n(&last[card].stream, __ATOMIC_RELAXED) == stream))
		return;
	/* Another thread's: its work is not seen from the watcher's. */
	if (stream == CU_STREAM_PER_THREAD || vgpu_real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS)
		return;
	/* Should the two not belong together, the question is refused: no harm. */
	__atomic_store_n(&last[card].ctx, ctx, __ATOMIC_RELAXED);
	__atomic_store_n(&last[card].stream, stream, __ATOMIC_RELEASE);
}

void vgpu_working_forget(CUstream stream, CUcontext ctx)
{
	hold();
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		if ((!stream && !ctx) ||
		    (stream && __atomic_load_n(&last[i].stream, __ATOMIC_RELAXED) == stream) ||
		    (ctx && __atomic_load_n(&last[i].ctx, __ATOMIC_RELAXED) == ctx))
			__atomic_store_n(&last[i].stream, NULL, __ATOMIC_RELAXED);
	release();
}

void vgpu_working_capture(void)
{
	hold();
	__atomic_add_fetch(&vgpu_captures, 1, __ATOMIC_SEQ_CST);
	release();
}

void vgpu_working_in_child(void)
{
	pthread_mutex_init(&ask_lock, NULL);
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		last[i].stream = NULL;
		seen[i].launches = 0;
	}
}

/* ask_lock is held. */
static bool runs(int card)
{
	CUstream stream = __atomic_load_n(&last[card].stream, __ATOMIC_ACQUIRE);
	CUcontext popped;
	CUresult r = CUDA_SUCCESS;
	int mode;

	if (!stream || vgpu_capturing() || !vgpu_real.cuStreamQuery)
		return false;
	asking = true;
	if (vgpu_real.cuCtxPushCurrent_v2(__atomic_load_n(&last[card].ctx, __ATOMIC_RELAXED)) ==
	    CUDA_SUCCESS) {
		mode = vgpu_capture_relax();
		if (!vgpu_stream_captured(stream))
			r = vgpu_real.cuStreamQuery(stream);
		vgpu_capture_restore(mode);
		vgpu_real.cuCtxPopCurrent_v2(&popped);
	}
	asking = false;
	return r == CUDA_ERROR_NOT_READY;
}

bool vgpu_working(int card)
{
	bool r;

	if (pthread_mutex_trylock(&ask_lock) != 0)
		return false;
	r = runs(card);
	pthread_mutex_unlock(&ask_lock);
	return r;
}

bool vgpu_working_is(int card, CUstream stream)
{
	return __atomic_load_n(&last[card].stream, __ATOMIC_RELAXED) == stream;
}

void vgpu_working_tick(uint64_t now)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		uint64_t *count = &vgpu_my((int)i)->launches;
		uint64_t launches = __atomic_load_n(count, __ATOMIC_RELAXED);

		if (launches != seen[i].launches) {
			seen[i].launches = launches;
			seen[i].asked_ns = now;
			seen[i].done = false;
			continue;
		}
		if (seen[i].done || now - seen[i].asked_ns < ASK_NS)
			continue;
		seen[i].asked_ns = now;
		pthread_mutex_lock(&ask_lock);
		seen[i].done = !runs((int)i);
		pthread_mutex_unlock(&ask_lock);
		if (!seen[i].done)
			seen[i].launches = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
	}
}
