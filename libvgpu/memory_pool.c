/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_pool.c - stream-ordered allocation. A pool takes memory from the card
 * in larger pieces than it is asked for and keeps freed memory for a while, so
 * the charge of a pool is the larger of what its users hold and what it has
 * reserved, brought up to date at growth, trims, synchronizations and refusals.
 */
#ifdef VGPU_PRELOAD
#include <errno.h>

#include "vgpu.h"

#define MAX_POOLS 128
/* The granularity of allocations inside a pool. */
#define POOL_ALIGN 512ull

struct pool {
	CUmemoryPool handle; /* NULL: free entry */
	int card;
	uint64_t live;    /* bytes that the program holds */
	uint64_t charged; /* bytes on our slot for this pool */
};
static struct pool pools[MAX_POOLS];
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static bool dirty; /* something was freed since the last settlement */

static struct vgpu_table async_ptrs = VGPU_TABLE_INIT;

static struct pool *pool_of(CUmemoryPool handle, int card)
{
	struct pool *p = NULL;

	pthread_mutex_lock(&pools_lock);
	for (int i = 0; i < MAX_POOLS && !p; i++)
		if (pools[i].handle == handle)
			p = &pools[i];
	for (int i = 0; i < MAX_POOLS && !p && card >= 0; i++) {
		if (pools[i].handle == NULL) {
			p = &pools[i];
			*p = (struct pool){.handle = handle, .card = card};
		}
	}
	pthread_mutex_unlock(&pools_lock);
	return p;
}

/* Brings the charge to what the pool really holds, up or down. */
static void settle(struct pool *p)
{
	uint64_t reserved = 0, live, want, have;

	if (!vgpu_real.cuMemPoolGetAttribute ||
	    vgpu_real.cuMemPoolGetAttribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
					    &reserved) != CUDA_SUCCESS)
		return;
	have = __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST);
	live = __atomic_load_n(&p->live, __ATOMIC_SEQ_CST);
	want = reserved > live ? reserved : live;
	if (want == have || !__atomic_compare_exchange_n(&p->charged, &have, want, false,
							 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	if (want > have)
		vgpu_charge_forced(p->card, want - have);
	else
		vgpu_release(p->card, have - want);
}

void vgpu_pools_settle(void)
{
	if (!__atomic_load_n(&dirty, __ATOMIC_RELAXED) || vgpu_captures)
		return;
	__atomic_store_n(&dirty, false, __ATOMIC_RELAXED);
	for (int i = 0; i < MAX_POOLS; i++)
		if (pools[i].handle)
			settle(&pools[i]);
}

static uint64_t whole_steps(uint64_t bytes)
{
	return (bytes + VGPU_POOL_STEP - 1) / VGPU_POOL_STEP * VGPU_POOL_STEP;
}

/* Makes room for size more bytes in the pool; 0 or -ENOMEM. */
static int grow(struct pool *p, uint64_t size)
{
	uint64_t live = __atomic_add_fetch(&p->live, size, __ATOMIC_SEQ_CST);

	if (live <= __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST) ||
	    vgpu_charge_up_to(p->card, &p->charged, whole_steps(live)) == 0)
		return 0;
	/* Not held while the pools are brought up to date: settling charges
	 * whatever is live without asking. */
	__atomic_sub_fetch(&p->live, size, __ATOMIC_SEQ_CST);
	/* Memory that pools keep but nobody uses: let the driver have it back. */
	for (int i = 0; i < MAX_POOLS && !vgpu_captures; i++) {
		if (pools[i].handle && pools[i].card == p->card && vgpu_real.cuMemPoolTrimTo) {
			vgpu_real.cuMemPoolTrimTo(pools[i].handle, 0);
			settle(&pools[i]);
		}
	}
	live = __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + size;
	if (vgpu_charge_up_to(p->card, &p->charged, whole_steps(live)))
		return -ENOMEM;
	__atomic_add_fetch(&p->live, size, __ATOMIC_SEQ_CST);
	return 0;
}

static uint64_t rounded(uint64_t size)
{
	return (size + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
}

static void keep(struct pool *p, CUdeviceptr dptr, uint64_t size)
{
	struct vgpu_item item = {.key = dptr,
				 .size = size,
				 .card = p->card,
				 .other = (uint64_t)(uintptr_t)p,
				 .refs = 1};

	vgpu_table_put(&async_ptrs, &item);
	/* Near the charge the driver may have grown the pool: see by how much. */
	if (__atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + size >
	    __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST))
		settle(p);
}

bool vgpu_pool_forget(CUdeviceptr dptr)
{
	struct vgpu_item item;
	struct pool *p;

	if (!vgpu_table_take(&async_ptrs, dptr, &item))
		return false;
	p = (struct pool *)(uintptr_t)item.other;
	__atomic_sub_fetch(&p->live, item.size, __ATOMIC_SEQ_CST);
	__atomic_store_n(&dirty, true, __ATOMIC_RELAXED);
	return true;
}

/* A captured allocation becomes a node of a graph and is charged there. */
static bool captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return vgpu_captures && vgpu_real.cuStreamIsCapturing &&
	       (vgpu_real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
		status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* The pool that cuMemAllocAsync uses in the current context. */
static struct pool *current_pool(int card)
{
	CUmemoryPool handle = NULL;
	CUdevice dev;

	if (!vgpu_real.cuDeviceGetMemPool || vgpu_real.cuCtxGetDevice(&dev) != CUDA_SUCCESS ||
	    vgpu_real.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS || !handle)
		return NULL;
	return pool_of(handle, card);
}

/* Default pools are not created by anybody we see. */
static bool is_default(CUmemoryPool pool)
{
	CUmemoryPool dflt = NULL;
	CUdevice dev;

	return pool && vgpu_real.cuDeviceGetDefaultMemPool && vgpu_state.grant &&
	       vgpu_real.cuCtxGetDevice(&dev) == CUDA_SUCCESS &&
	       vgpu_real.cuDeviceGetDefaultMemPool(&dflt, dev) == CUDA_SUCCESS && dflt == pool;
}

static CUresult alloc_async(CUresult (*real)(CUdeviceptr *, size_t, CUstream), CUdeviceptr *dptr,
			    size_t size, CUstream stream)
{
	uint64_t bytes = rounded(size);
	struct pool *p;
	CUresult r;
	int card;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	p = card >= 0 && dptr && !captured(stream) ? current_pool(card) : NULL;
	if (!p)
		return real(dptr, size, stream);
	vgpu_mem_begin();
	if (grow(p, bytes)) {
		vgpu_mem_end();
		return vgpu_oom(card, size);
	}
	r = real(dptr, size, stream);
	if (r == CUDA_SUCCESS)
		keep(p, *dptr, bytes);
	else
		__atomic_sub_fetch(&p->live, bytes, __ATOMIC_SEQ_CST);
	vgpu_mem_end();
	return r;
}

static CUresult alloc_from_pool(CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream),
				CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	uint64_t bytes = rounded(size);
	struct pool *p;
	CUresult r;
	int card;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	p = card >= 0 && dptr && pool && !captured(stream) ? pool_of(pool, -1) : NULL;
	if (!p && is_default(pool))
		p = pool_of(pool, card);
	if (!p)
		return real(dptr, size, pool, stream);
	card = p->card;
	vgpu_mem_begin();
	if (grow(p, bytes)) {
		vgpu_mem_end();
		return vgpu_oom(card, size);
	}
	r = real(dptr, size, pool, stream);
	if (r == CUDA_SUCCESS)
		keep(p, *dptr, bytes);
	else
		__atomic_sub_fetch(&p->live, bytes, __ATOMIC_SEQ_CST);
	vgpu_mem_end();
	return r;
}

static CUresult free_async(CUresult (*real)(CUdeviceptr, CUstream), CUdeviceptr dptr,
			   CUstream stream)
{
	CUresult r;

	if (!real)
		return CUDA_ERROR_NO_DEVICE;
	r = real(dptr, stream);
	if (r == CUDA_SUCCESS && dptr && vgpu_state.grant)
		vgpu_pool_forget(dptr);
	return r;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t size, CUstream stream)
{
	vgpu_need_cuda();
	return alloc_async(vgpu_real.cuMemAllocAsync, dptr, size, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t size, CUstream stream)
{
	vgpu_need_cuda();
	return alloc_async(vgpu_real.cuMemAllocAsync_ptsz, dptr, size, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	vgpu_need_cuda();
	return alloc_from_pool(vgpu_real.cuMemAllocFromPoolAsync, dptr, size, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t size, CUmemoryPool pool,
				      CUstream stream)
{
	vgpu_need_cuda();
	return alloc_from_pool(vgpu_real.cuMemAllocFromPoolAsync_ptsz, dptr, size, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	vgpu_need_cuda();
	return free_async(vgpu_real.cuMemFreeAsync, dptr, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	vgpu_need_cuda();
	return free_async(vgpu_real.cuMemFreeAsync_ptsz, dptr, stream);
}

/* A pool belongs to the card that it names, whatever context is current; one in
 * host memory to none. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemPoolCreate)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuMemPoolCreate(pool, props);
	if (r == CUDA_SUCCESS && vgpu_state.grant &&
	    props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		int card = vgpu_card_of_device(props->location.id);

		if (card >= 0)
			pool_of(*pool, card);
	}
	return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	struct pool *p;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemPoolTrimTo)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuMemPoolTrimTo(pool, keep_bytes);
	p = r == CUDA_SUCCESS && vgpu_state.grant ? pool_of(pool, -1) : NULL;
	if (p)
		settle(p);
	return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct pool *p;
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemPoolDestroy)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuMemPoolDestroy(pool);
	p = r == CUDA_SUCCESS && vgpu_state.grant && pool ? pool_of(pool, -1) : NULL;
	if (p) {
		vgpu_release(p->card, __atomic_exchange_n(&p->charged, 0, __ATOMIC_SEQ_CST));
		__atomic_store_n(&p->handle, NULL, __ATOMIC_SEQ_CST);
	}
	return r;
}
#endif
