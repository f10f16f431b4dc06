/* SPDX-License-Identifier: Apache-2.0 */
/* frees.c - see frees.h. */
#include <pthread.h>

#include "../driver/captures.h"
#include "../driver/real.h"
#include "frees.h"

/* Not held over a call that waits if the stream is full: the event is taken out of its entry then. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One default stream of a thread is not that of another. */
static uint64_t key_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self()
					      : (uint64_t)(uintptr_t)stream;
}

static void forget(struct vgpu_frees *f, unsigned i)
{
	vgpu_real.cuEventDestroy_v2(f->in[i].event);
	f->in[i].event = NULL;
	f->in[i].key = f->in[i].bytes = 0;
}

/* The entry whose event is there, or a free one; -1: none. lock is held. */
static int entry_of(const struct vgpu_frees *f, uint64_t key)
{
	int i, empty = -1;

	for (i = VGPU_FREES - 1; i >= 0; i--) {
		if (f->in[i].key == key && f->in[i].event)
			return i;
		if (!f->in[i].key)
			empty = i;
	}
	return empty;
}

static bool record(CUevent *e, CUstream stream)
{
	return (*e || vgpu_real.cuEventCreate(e, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) &&
	       vgpu_real.cuEventRecord(*e, stream) == CUDA_SUCCESS;
}

static bool can_mark(CUstream stream)
{
	return !vgpu_capturing() && !vgpu_stream_captured(stream) && vgpu_real.cuEventCreate &&
	       vgpu_real.cuEventRecord && vgpu_real.cuEventQuery && vgpu_real.cuEventSynchronize &&
	       vgpu_real.cuEventDestroy_v2 && vgpu_real.cuStreamWaitEvent;
}

void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes)
{
	uint64_t key = key_of(stream);
	CUevent e = NULL;
	bool ok;
	int i = -1;

	if (can_mark(stream)) {
		pthread_mutex_lock(&lock);
		i = entry_of(f, key);
		if (i >= 0) {
			e = f->in[i].event;
			f->in[i].event = NULL;
			f->in[i].key = key;
			f->in[i].bytes += bytes;
		}
		pthread_mutex_unlock(&lock);
	}
	if (i < 0) {
		vgpu_frees_unknown(f);
		return;
	}
	ok = record(&e, stream);
	if (!ok)
		vgpu_frees_unknown(f);
	pthread_mutex_lock(&lock);
	f->in[i].event = e;
	if (!e)
		f->in[i].key = f->in[i].bytes = 0;
	else if (!ok)
		forget(f, (unsigned)i);
	pthread_mutex_unlock(&lock);
}

void vgpu_frees_unknown(struct vgpu_frees *f)
{
	if (!vgpu_frees_hide(f))
		__atomic_store_n(&f->unknown, true, __ATOMIC_SEQ_CST);
}

uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream)
{
	uint64_t key = key_of(stream), sum = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < VGPU_FREES; i++)
		if (f->in[i].key != key)
			sum += f->in[i].bytes;
	pthread_mutex_unlock(&lock);
	return sum;
}

void vgpu_frees_before(struct vgpu_frees *f, CUstream stream)
{
	uint64_t key = key_of(stream);

	for (unsigned i = 0; i < VGPU_FREES; i++) {
		CUevent e;

		pthread_mutex_lock(&lock);
		e = f->in[i].key != key ? f->in[i].event : NULL;
		if (e)
			f->in[i].event = NULL;
		pthread_mutex_unlock(&lock);
		if (!e)
			continue;
		vgpu_real.cuStreamWaitEvent(stream, e, 0);
		pthread_mutex_lock(&lock);
		f->in[i].event = e;
		pthread_mutex_unlock(&lock);
	}
}

bool vgpu_frees_passed(struct vgpu_frees *f)
{
	int mode = vgpu_capture_relax();
	bool all = true;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < VGPU_FREES; i++) {
		CUevent e = f->in[i].event;

		if (e && vgpu_real.cuEventQuery(e) != CUDA_ERROR_NOT_READY) {
			vgpu_real.cuEventSynchronize(e);
			forget(f, i);
		}
		all = all && !f->in[i].key;
	}
	pthread_mutex_unlock(&lock);
	vgpu_capture_restore(mode);
	return all;
}

void vgpu_frees_none(struct vgpu_frees *f)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < VGPU_FREES; i++)
		if (f->in[i].event)
			forget(f, i);
	__atomic_store_n(&f->unknown, false, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&lock);
}

void vgpu_frees_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}
