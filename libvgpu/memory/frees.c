/* SPDX-License-Identifier: Apache-2.0 */
/* frees.c - see pool.h. */
#include <pthread.h>

#include "../driver/captures.h"
#include "../driver/real.h"
#include "pool.h"

/* One default stream of a thread is not that of another. */
static uint64_t key_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self()
					      : (uint64_t)(uintptr_t)stream;
}

static CUevent event_of(const struct vgpu_item *item)
{
	return (CUevent)(uintptr_t)item->other;
}

static void forget(const struct vgpu_item *item)
{
	if (item->other)
		vgpu_real.cuEventDestroy_v2(event_of(item));
	SUB(&((struct vgpu_frees *)(uintptr_t)item->owner)->pending, 1);
}

static bool can_mark(CUstream stream)
{
	return !vgpu_capturing() && !vgpu_stream_captured(stream) && vgpu_real.cuEventCreate &&
	       vgpu_real.cuEventRecord && vgpu_real.cuEventQuery && vgpu_real.cuEventSynchronize &&
	       vgpu_real.cuEventDestroy_v2 && vgpu_real.cuStreamWaitEvent;
}

/* A new entry. */
static struct vgpu_item begin(struct vgpu_frees *f, uint64_t key)
{
	CUevent e = NULL;

	ADD(&f->pending, 1);
	vgpu_real.cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
	return (struct vgpu_item){.key = key, .other = (uintptr_t)e, .owner = (uintptr_t)f};
}

void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes)
{
	struct vgpu_item item;

	if (!can_mark(stream)) {
		STORE(&f->unknown, true);
		return;
	}
	if (!vgpu_table_take(&f->in, key_of(stream), &item))
		item = begin(f, key_of(stream));
	item.size += bytes;
	if (item.other && vgpu_real.cuEventRecord(event_of(&item), stream) == CUDA_SUCCESS &&
	    vgpu_table_put(&f->in, &item))
		return;
	STORE(&f->unknown, true);
	forget(&item);
}

struct others {
	uint64_t key, bytes;
};

static bool add_up(const struct vgpu_item *item, uint64_t others)
{
	struct others *o = (struct others *)(uintptr_t)others;

	o->bytes += item->key != o->key ? item->size : 0;
	return false;
}

uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream)
{
	struct others o = {.key = key_of(stream)};

	vgpu_table_sweep(&f->in, (uintptr_t)&o, add_up);
	return o.bytes;
}

static bool is_other(const struct vgpu_item *item, uint64_t key)
{
	return item->key != key;
}

void vgpu_frees_before(struct vgpu_frees *f, CUstream stream)
{
	struct vgpu_item *list = vgpu_table_detach_if(&f->in, key_of(stream), is_other);

	for (const struct vgpu_item *item = list; item; item = item->next)
		vgpu_real.cuStreamWaitEvent(stream, event_of(item), 0);
	vgpu_table_attach(&f->in, list);
}

/* The driver is asked and never waits. */
static bool has_passed(const struct vgpu_item *item, uint64_t unused)
{
	(void)unused;
	return vgpu_real.cuEventQuery(event_of(item)) != CUDA_ERROR_NOT_READY &&
	       (vgpu_real.cuEventSynchronize(event_of(item)), true);
}

bool vgpu_frees_passed(struct vgpu_frees *f)
{
	int mode = vgpu_capture_relax();

	vgpu_table_drop(&f->in, vgpu_table_detach_if(&f->in, 0, has_passed), forget);
	vgpu_capture_restore(mode);
	return !LOAD(&f->pending) && !LOAD(&f->unknown);
}

void vgpu_frees_none(struct vgpu_frees *f)
{
	vgpu_table_drop(&f->in, vgpu_table_detach_if(&f->in, 0, is_other), forget);
	STORE(&f->unknown, false);
}
