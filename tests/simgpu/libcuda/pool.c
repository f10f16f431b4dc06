// SPDX-License-Identifier: Apache-2.0
/*
 * pool.c - stream-ordered allocation.
 *
 * A pool takes memory from the card in steps of 32 MiB (pieces.c) and keeps what is freed, for whom
 * and how long is in freed.c. It gives whole steps back when it is trimmed, when it is destroyed, when the
 * process runs short, and at a synchronisation down to its release threshold.
 */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>

static CUmemoryPool pools;
static CUmemoryPool default_pool[SIM_MAX_CARDS], current_pool[SIM_MAX_CARDS];

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static bool pool_ok(CUmemoryPool p)
{
	for (CUmemoryPool q = pools; q; q = q->next)
		if (q == p)
			return !q->destroyed;
	return false;
}

static CUmemoryPool pool_new(CUdevice dev)
{
	CUmemoryPool p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->magic = MAGIC_POOL;
	p->dev = dev;
	p->card = drv.card[dev];
	for (int i = 0; i < 4; i++)
		p->reuse[i] = 1;
	p->next = pools;
	pools = p;
	return p;
}

CUmemoryPool pool_default(CUdevice dev)
{
	if (!default_pool[dev]) {
		default_pool[dev] = pool_new(dev);
		if (default_pool[dev])
			default_pool[dev]->is_default = true;
	}
	return default_pool[dev];
}

static CUmemoryPool pool_current(CUdevice dev)
{
	return current_pool[dev] ? current_pool[dev] : pool_default(dev);
}

static void shrink(CUmemoryPool p, uint64_t keep)
{
	freed_kept(p); /* drops frees of destroyed streams */
	mem_uncharge(p->card, pieces_shrink(p, keep));
}

static void pool_end(CUmemoryPool p)
{
	CUmemoryPool *link = &pools;

	pieces_forget(p, 0);
	shrink(p, 0);
	free(p->step);
	if (p->export)
		export_leave(p->export);
	while (*link != p)
		link = &(*link)->next;
	*link = p->next;
	p->magic = 0;
	free(p);
}

void pool_release_unused(uint32_t card)
{
	for (CUmemoryPool p = pools; p; p = p->next)
		if (p->card == card)
			shrink(p, 0);
}

/* A pool that was destroyed ends with the last of its memory. */
static bool over(CUmemoryPool p)
{
	CUmemoryPool of = p->of;

	if (!p->destroyed || p->used || p->given || p->imports || freed_kept(p))
		return false;
	pool_end(p);
	if (of && --of->imports == 0)
		over(of);
	return true;
}

CUmemoryPool pool_exported(uint64_t key)
{
	CUmemoryPool p = pools;

	while (p && p->export != key)
		p = p->next;
	return p;
}

CUmemoryPool pool_import(CUmemoryPool of)
{
	CUmemoryPool p = pool_new(of->dev);

	if (p) {
		p->of = of;
		of->imports++;
	}
	return p;
}

void pool_at_sync(void)
{
	for (CUmemoryPool p = pools, next; p; p = next) {
		next = p->next;
		if (!over(p) && p->reserved > p->threshold)
			shrink(p, p->threshold);
	}
}

void pools_end(void)
{
	for (CUmemoryPool p = pools, next; p; p = next) {
		next = p->next;
		over(p);
	}
}

void pool_free(struct block *b)
{
	CUmemoryPool p = b->pool;
	uint64_t size = round_up(b->size, POOL_ALIGN);

	if (b->given)
		p->given--;
	else
		p->used = size < p->used ? p->used - size : 0;
	if (dmabuf_keeps(b)) {
		/* with its steps, if nothing else of the pool is in them */
		b->kind = BLOCK_LINEAR;
		b->charged = pieces_detach(p, b->va, b->at, size);
	} else {
		if (b->given)
			pieces_unname(p, b->va);
		else
			pieces_forget(p, b->va);
		block_remove(b);
	}
	over(p);
}

CUresult pool_alloc(CUmemoryPool p, CUcontext ctx, CUstream s, uint64_t size, CUdeviceptr *out)
{
	struct block b = {.size = size, .kind = BLOCK_POOL, .card = p->card, .ctx = ctx, .pool = p};
	uint64_t need = round_up(size, POOL_ALIGN);
	struct piece *piece;

	if (size > (1ull << 46))
		return CUDA_ERROR_OUT_OF_MEMORY;
	b.va = va_take(need, POOL_ALIGN);
	if (!b.va)
		return CUDA_ERROR_OUT_OF_MEMORY;
	piece = pieces_take(p, s, false, need);
	if (!piece && s &&
	    p->reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES]) /* the card is full: the stream waits for frees of other streams */
		piece = pieces_take(p, s, true, need);
	if (!piece) {
		va_give(b.va, need);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	piece->va = b.va;
	b.at = piece->at;
	if (!block_add(&b)) {
		pieces_forget(p, b.va);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->used += need;
	if (p->used > p->used_high)
		p->used_high = p->used;
	*out = b.va;
	return CUDA_SUCCESS;
}

static CUresult alloc_async(CUdeviceptr *dptr, uint64_t size, CUmemoryPool pool, CUstream handle)
{
	CUstream s = stream_of(handle);

	if (!dptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture)
		return graph_add_alloc(s->capture->graph, s->ctx->card, size, dptr, NULL);
	if (capture_beside(s)) {
		capture_beside(s)->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (pool && pool->of)
		return CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		pool = pool_current(s->ctx->dev);
	/* memory whose ordered free has been passed can be used again */
	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	return pool ? pool_alloc(pool, s->ctx, s, size, dptr) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t size, CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(alloc_async(dptr, size, NULL, hStream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t size, CUmemoryPool pool,
				 CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(pool_ok(pool) ? alloc_async(dptr, size, pool, hStream)
				       : CUDA_ERROR_INVALID_VALUE);
}

static CUresult device_pool(CUmemoryPool *pool, CUdevice dev, bool want_default)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!drv_device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = want_default ? pool_default(dev) : pool_current(dev);
	return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER(NEED_INIT);
	return drv_leave(device_pool(pool, dev, true));
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	ENTER(NEED_INIT);
	return drv_leave(device_pool(pool, dev, false));
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	if (!pool_ok(pool) || pool->dev != dev)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	current_pool[dev] = pool;
	return drv_leave(CUDA_SUCCESS);
}

enum { TYPE_PINNED = 1, TYPE_MANAGED };

/* Managed memory may name no place: then its pages come to the first device. */
static bool place_of(const CUmemLocation *l, int type, CUdevice *dev)
{
	*dev = l->type == 1 ? l->id : 0;
	return (type == TYPE_PINNED || type == TYPE_MANAGED) &&
	       (l->type == 1 || type == TYPE_MANAGED);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	static CUmemoryPool managed;
	CUdevice dev;

	ENTER(NEED_INIT);
	if (!pool || !location || !place_of(location, type, &dev))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (type == TYPE_PINNED)
		return drv_leave(device_pool(pool, dev, true));
	if (!managed)
		managed = pool_new(dev);
	*pool = managed;
	return drv_leave(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUdevice dev;

	ENTER(NEED_INIT);
	if (!pool || !props || !place_of(&props->location, props->allocType, &dev))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	*pool = pool_new(dev);
	if (*pool)
		(*pool)->types = props->handleTypes;
	return drv_leave(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Memory still in use stays; the pool ends with the last free. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	ENTER(NEED_INIT);
	if (!pool_ok(pool) || pool->is_default)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (current_pool[pool->dev] == pool)
		current_pool[pool->dev] = NULL;
	effects_take();
	pool->destroyed = true;
	export_end_imports(pool);
	freed_all_seen(pool);
	over(pool);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	ENTER(NEED_INIT);
	if (!pool_ok(pool))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	shrink(pool, keep);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attr, void *value)
{
	uint64_t v = 0;

	ENTER(NEED_INIT);
	if (!pool_ok(pool) || !value || attr < 1 || attr > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (attr < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool->reuse[attr] = *(int *)value;
		return drv_leave(CUDA_SUCCESS);
	}
	memcpy(&v, value, sizeof(v));
	if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		pool->threshold = v;
	else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && !v)
		pool->reserved_high = pool->reserved;
	else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH && !v)
		pool->used_high = pool->used;
	else
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attr, void *value)
{
	uint64_t v = 0;

	ENTER(NEED_INIT);
	if (!pool_ok(pool) || !value || attr < 1)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (attr < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		*(int *)value = pool->reuse[attr];
		return drv_leave(CUDA_SUCCESS);
	}
	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	switch (attr) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		v = pool->threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		v = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		v = pool->reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		v = pool->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		v = pool->used_high;
		break;
	default:
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	}
	memcpy(value, &v, sizeof(v));
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t n)
{
	ENTER(NEED_INIT);
	return drv_leave(pool_ok(pool) && (desc || !n) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
