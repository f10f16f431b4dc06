/* SPDX-License-Identifier: Apache-2.0 */
/* frees.c - see frees.h. */
#include <pthread.h>

#include "../driver/captures.h"
#include "../driver/real.h"
#include "frees.h"

/* One default stream of a thread is not that of another. */
static uint64_t key_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self()
					      : (uint64_t)(uintptr_t)stream;
}

/* A call that waits if its stream is full must not stop other threads: they leave the entry alone. */
static bool take(struct vgpu_free *e)
{
	return !EXCHANGE(&e->taken, true);
}

static void give(struct vgpu_free *e)
{
	STORE(&e->taken, false);
}

/* The entry is taken. */
static void forget(struct vgpu_free *e)
{
	if (e->event)
		vgpu_real.cuEventDestroy_v2(e->event);
	e->event = NULL;
	STORE(&e->bytes, 0);
	STORE(&e->key, 0);
}

/* Takes an entry of a key, or a free one; NULL: there is none. */
static struct vgpu_free *take_of(struct vgpu_frees *f, uint64_t key)
{
	for (struct vgpu_free *e = f->in; e < f->in + VGPU_FREES; e++) {
		if (LOAD(&e->key) != key || !take(e))
			continue;
		if (e->key == key)
			return e;
		give(e);
	}
	return key ? take_of(f, 0) : NULL;
}

static bool record(struct vgpu_free *e, CUstream stream)
{
	return (e->event ||
		vgpu_real.cuEventCreate(&e->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) &&
	       vgpu_real.cuEventRecord(e->event, stream) == CUDA_SUCCESS;
}

static bool can_mark(CUstream stream)
{
	return !vgpu_capturing() && !vgpu_stream_captured(stream) && vgpu_real.cuEventCreate &&
	       vgpu_real.cuEventRecord && vgpu_real.cuEventQuery && vgpu_real.cuEventSynchronize &&
	       vgpu_real.cuEventDestroy_v2 && vgpu_real.cuStreamWaitEvent;
}

void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes)
{
	struct vgpu_free *e = can_mark(stream) ? take_of(f, key_of(stream)) : NULL;
	bool ok;

	if (e) {
		STORE(&e->key, key_of(stream));
		STORE(&e->bytes, e->bytes + bytes);
	}
	ok = e && record(e, stream);
	if (!ok)
		STORE(&f->unknown, true);
	if (e && !ok)
		forget(e);
	if (e)
		give(e);
}

uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream)
{
	uint64_t key = key_of(stream), sum = 0;

	for (struct vgpu_free *e = f->in; e < f->in + VGPU_FREES; e++)
		if (LOAD(&e->key) != key)
			sum += LOAD(&e->bytes);
	return sum;
}

void vgpu_frees_before(struct vgpu_frees *f, CUstream stream)
{
	for (struct vgpu_free *e = f->in; e < f->in + VGPU_FREES; e++) {
		if (!LOAD(&e->key) || !take(e))
			continue;
		if (e->event && e->key != key_of(stream))
			vgpu_real.cuStreamWaitEvent(stream, e->event, 0);
		give(e);
	}
}

bool vgpu_frees_passed(struct vgpu_frees *f)
{
	int mode = vgpu_capture_relax();
	bool all = !LOAD(&f->unknown);

	for (struct vgpu_free *e = f->in; e < f->in + VGPU_FREES; e++) {
		if (LOAD(&e->key) && take(e)) {
			if (e->event && vgpu_real.cuEventQuery(e->event) != CUDA_ERROR_NOT_READY) {
				vgpu_real.cuEventSynchronize(e->event);
				forget(e);
			}
			give(e);
		}
		all = all && !LOAD(&e->key);
	}
	vgpu_capture_restore(mode);
	return all;
}

void vgpu_frees_none(struct vgpu_frees *f)
{
	for (struct vgpu_free *e = f->in; e < f->in + VGPU_FREES; e++)
		if (LOAD(&e->key) && take(e)) {
			forget(e);
			give(e);
		}
	STORE(&f->unknown, false);
}
