/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - stream-ordered allocation. A pool takes memory from the card
 * in larger pieces than it is asked for and keeps freed memory for a while, so
 * the charge of a pool is the larger of what its users hold and what it has
 * reserved, brought up to date at growth, trims and refusals, and by the watcher.
 */
#include <stdlib.h>

#include "../base/table.h"
#include "../driver/captures.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "account.h"
#include "owner.h"
#include "pool.h"
#include "shared.h"

/* The handle of a pool that the program destroyed while it held memory of it: the
 * driver keeps such a pool until the last of that is freed, and so does the charge. */
#define DESTROYED ((CUmemoryPool)UINTPTR_MAX)

/* Entries never move. More are made when these are in use; none is ever given back. */
#define POOLS 128
struct pools {
	struct pool pool[POOLS];
	struct pools *next;
};
static struct pools pools;
pthread_mutex_t vgpu_pools_lock = PTHREAD_MUTEX_INITIALIZER;
/* What a pool has taken may be less than what is charged since the last of so many changes; up to
 * settled of them have been looked at. Who asks meanwhile looks itself. */
static uint64_t changed, settled;
/* The watcher asks the pools at most so often; those that keep what nobody holds, in the
 * hope of use, less often. */
#define SETTLE_NS 20000000u
#define SETTLE_KEPT_NS 250000000u
static uint64_t kept; /* found so often since none did */
static struct vgpu_table async_ptrs = VGPU_TABLE_INIT;

static struct pools *after(const struct pools *block)
{
	return __atomic_load_n(&block->next, __ATOMIC_ACQUIRE);
}

/* A handle is looked for far more often than it comes or goes: no lock to find one. */
static struct pool *find_pool(CUmemoryPool handle)
{
	for (struct pools *block = &pools; block; block = after(block))
		for (int i = 0; i < POOLS; i++)
			if (__atomic_load_n(&block->pool[i].handle, __ATOMIC_ACQUIRE) == handle)
				return &block->pool[i];
	return NULL;
}

/* vgpu_pools_lock is held; NULL when the process has no memory for more entries. */
static struct pool *free_entry(void)
{
	struct pool *p = find_pool(NULL);
	struct pools *last = &pools, *more = p ? NULL : calloc(1, sizeof *more);

	if (!more)
		return p;
	while (last->next)
		last = last->next;
	__atomic_store_n(&last->next, more, __ATOMIC_RELEASE);
	return more->pool;
}

struct pool *vgpu_pool_of(CUmemoryPool handle, int card)
{
	struct pool *p = find_pool(handle);

	if (p || card < 0)
		return p;
	pthread_mutex_lock(&vgpu_pools_lock);
	p = find_pool(handle);
	if (!p && (p = free_entry()) != NULL) {
		p->card = card;
		p->managed = false;
		__atomic_store_n(&p->live, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->charged, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->unasked, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&p->grown, false, __ATOMIC_RELAXED);
		p->created = false;
		vgpu_frees_none(&p->frees);
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&vgpu_pools_lock);
	return p;
}

static uint64_t same(uint64_t live)
{
	return live;
}

/* Brings the charge to what the pool really holds, up or down. vgpu_pools_lock is held. */
static void settle_locked(struct pool *p)
{
	uint64_t reserved = 0, live, want, have;

	__atomic_store_n(&p->unasked, 0, __ATOMIC_SEQ_CST);
	if (!p->handle || p->handle == DESTROYED || !vgpu_real.cuMemPoolGetAttribute ||
	    vgpu_real.cuMemPoolGetAttribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
					    &reserved) != CUDA_SUCCESS)
		return;
	have = __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST);
	live = __atomic_load_n(&p->live, __ATOMIC_SEQ_CST);
	want = reserved > live ? reserved : live;
	if (reserved > live)
		__atomic_add_fetch(&kept, 1, __ATOMIC_SEQ_CST);
	if (want <= have) {
		vgpu_charge_down_to(p->card, &p->charged, want, &p->live, same);
		return;
	}
	vgpu_charge_forced(p->card, want - have);
	__atomic_store_n(&p->grown, true, __ATOMIC_SEQ_CST);
	if (!__atomic_compare_exchange_n(&p->charged, &have, want, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		vgpu_release(p->card, want - have);
}

/* The driver has given back what was the pool's. vgpu_pools_lock is held, and let go of. */
static void end_pool(struct pool *p)
{
	uint64_t charged = __atomic_exchange_n(&p->charged, 0, __ATOMIC_SEQ_CST);
	CUmemoryPool was = p->was;
	int card = p->card;

	__atomic_store_n(&p->handle, NULL, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&vgpu_pools_lock);
	vgpu_shared_release((uint64_t)(uintptr_t)was, card, charged);
}

/* Ends a pool that is destroyed, when the card has come to the last free of it; vgpu_pools_lock is
 * held, and let go of. */
static void end_if_over(struct pool *p)
{
	bool over = p->handle == DESTROYED && __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) == 0;

	if (over &&
	    (vgpu_capturing() || !vgpu_frees_passed(&p->frees) || vgpu_frees_hide(&p->frees))) {
		__atomic_add_fetch(&kept, 1, __ATOMIC_SEQ_CST);
		over = false;
	}
	if (over)
		end_pool(p);
	else
		pthread_mutex_unlock(&vgpu_pools_lock);
}

void vgpu_pool_settle(struct pool *p)
{
	pthread_mutex_lock(&vgpu_pools_lock);
	settle_locked(p);
	end_if_over(p);
}

bool vgpu_pool_streams_wait(struct pool *p)
{
	int allowed = 1;

	pthread_mutex_lock(&vgpu_pools_lock);
	if (p->handle && p->handle != DESTROYED && vgpu_real.cuMemPoolGetAttribute &&
	    vgpu_real.cuMemPoolGetAttribute(p->handle,
					    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
					    &allowed) != CUDA_SUCCESS)
		allowed = 1;
	pthread_mutex_unlock(&vgpu_pools_lock);
	return allowed;
}

void vgpu_pools_changed(void)
{
	__atomic_add_fetch(&changed, 1, __ATOMIC_SEQ_CST);
}

static bool unsettled(void)
{
	return __atomic_load_n(&changed, __ATOMIC_SEQ_CST) !=
	       __atomic_load_n(&settled, __ATOMIC_SEQ_CST);
}

void vgpu_pools_waited(void)
{
	uint64_t changes = __atomic_load_n(&changed, __ATOMIC_SEQ_CST);
	uint64_t keeps = __atomic_load_n(&kept, __ATOMIC_SEQ_CST);

	if (vgpu_capturing() || (!unsettled() && !keeps))
		return;
	for (struct pools *block = &pools; block; block = after(block))
		for (int i = 0; i < POOLS; i++)
			if (__atomic_load_n(&block->pool[i].handle, __ATOMIC_RELAXED))
				vgpu_pool_settle(&block->pool[i]);
	/* Unless it was found again. */
	__atomic_compare_exchange_n(&kept, &keeps, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	__atomic_store_n(&settled, changes, __ATOMIC_SEQ_CST);
}

void vgpu_pools_settle(void)
{
	vgpu_shared_settle();
	vgpu_pools_waited();
}

void vgpu_pools_tick(uint64_t now)
{
	static uint64_t last;
	uint64_t every = unsettled() ? SETTLE_NS : SETTLE_KEPT_NS;

	if (now - last < every)
		return;
	last = now;
	vgpu_pools_settle();
}

/* vgpu_pools_lock is held. True: all that it has is what the program holds. */
static bool trim_locked(struct pool *p)
{
	uint64_t reserved = 0;

	vgpu_frees_passed(&p->frees);
	return vgpu_real.cuMemPoolTrimTo(p->handle, 0) == CUDA_SUCCESS &&
	       vgpu_real.cuMemPoolGetAttribute &&
	       vgpu_real.cuMemPoolGetAttribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
					       &reserved) == CUDA_SUCCESS &&
	       reserved <= vgpu_pool_steps(__atomic_load_n(&p->live, __ATOMIC_SEQ_CST));
}

void vgpu_pools_trim(int card)
{
	for (struct pools *block = &pools; block && !vgpu_capturing(); block = after(block))
		for (int i = 0; i < POOLS && vgpu_real.cuMemPoolTrimTo; i++) {
			struct pool *p = &block->pool[i];

			if (!__atomic_load_n(&p->handle, __ATOMIC_RELAXED))
				continue;
			pthread_mutex_lock(&vgpu_pools_lock);
			if (p->handle && p->handle != DESTROYED && p->card == card) {
				trim_locked(p);
				settle_locked(p);
			}
			pthread_mutex_unlock(&vgpu_pools_lock);
		}
}

void vgpu_pools_in_child(void)
{
	pthread_mutex_init(&vgpu_pools_lock, NULL);
}

void vgpu_pool_keep(struct pool *p, CUdeviceptr dptr, uint64_t size)
{
	struct vgpu_item item = {.key = dptr,
				 .size = size,
				 .card = p->card,
				 .owner = vgpu_context_owner(p->card),
				 .other = (uint64_t)(uintptr_t)p};

	if (p->managed)
		__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	vgpu_table_put(&async_ptrs, &item);
}

/* The program no longer holds it. True: it was the last of a pool that is destroyed. */
static bool given(struct pool *p, const struct vgpu_item *item)
{
	/* A descriptor keeps the whole step, which the pool may have given back. */
	vgpu_shared_freed(item->key, p->card, vgpu_pool_steps(item->size));
	if (p->managed)
		__atomic_sub_fetch(&vgpu_managed_bytes, item->size, __ATOMIC_RELAXED);
	return __atomic_sub_fetch(&p->live, item->size, __ATOMIC_SEQ_CST) == 0 &&
	       __atomic_load_n(&p->handle, __ATOMIC_SEQ_CST) == DESTROYED;
}

/* While the job has less than half of its limit, it is not above that when a pool grows by what it
 * has freed. A pool that is destroyed can no longer be asked. */
static void freed_in(struct pool *p, CUstream stream, uint64_t bytes)
{
	uint64_t limit = vgpu_limit(p->card);

	if (!stream || !limit)
		return;
	if (p->created || vgpu_mem_used(p->card) > limit / 2)
		vgpu_frees_mark(&p->frees, stream, bytes);
	else
		vgpu_frees_unknown(&p->frees);
}

bool vgpu_pool_freeing(CUdeviceptr dptr, struct vgpu_item *item)
{
	return __atomic_load_n(&async_ptrs.count, __ATOMIC_RELAXED) &&
	       vgpu_table_take(&async_ptrs, dptr, item);
}

void vgpu_pool_freed(const struct vgpu_item *item, CUstream stream, CUresult r)
{
	struct pool *p = (struct pool *)(uintptr_t)item->other;

	if (r != CUDA_SUCCESS) {
		vgpu_table_put(&async_ptrs, item);
		return;
	}
	freed_in(p, stream, item->size);
	if (given(p, item)) {
		pthread_mutex_lock(&vgpu_pools_lock);
		end_if_over(p); /* unless another thread was first, or it could not be destroyed */
	}
	vgpu_pools_changed();
}

static bool add_up(const struct vgpu_item *item, uint64_t owner)
{
	struct pool *p = (struct pool *)(uintptr_t)item->other;

	p->sum += item->size;
	if (item->owner == owner)
		p->ending += item->size;
	return false;
}

static bool ended(const struct vgpu_item *item, uint64_t owner)
{
	struct pool *p = (struct pool *)(uintptr_t)item->other;

	if (item->owner != owner || !p->ending)
		return false;
	given(p, item);
	return true;
}

/* A pool is the device's, and CUDA does not say whether an allocation of it ends with the
 * context in which it was made. So the pool is asked, and what it still has counts on. */
void vgpu_pools_ended(uint64_t owner)
{
	pthread_mutex_lock(&vgpu_pools_lock);
	for (struct pools *block = &pools; block; block = after(block))
		for (int i = 0; i < POOLS; i++)
			block->pool[i].sum = block->pool[i].ending = 0;
	vgpu_table_sweep(&async_ptrs, owner, add_up);
	for (struct pools *block = &pools; block; block = after(block))
		for (int i = 0; i < POOLS; i++) {
			struct pool *p = &block->pool[i];
			uint64_t used = 0;

			if (!p->ending)
				continue;
			if (p->handle == DESTROYED || !vgpu_real.cuMemPoolGetAttribute ||
			    vgpu_real.cuMemPoolGetAttribute(p->handle,
							    CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
							    &used) != CUDA_SUCCESS ||
			    used > p->sum - p->ending)
				p->ending = 0;
		}
	vgpu_table_sweep(&async_ptrs, owner, ended);
	pthread_mutex_unlock(&vgpu_pools_lock);
	vgpu_pools_changed();
	vgpu_pools_settle();
}

bool vgpu_pools_exported_one(struct vgpu_range *range)
{
	return vgpu_shared_one(&async_ptrs, range);
}

void vgpu_pools_exported(struct vgpu_range *range)
{
	vgpu_table_sweep(&async_ptrs, (uintptr_t)range, vgpu_shared_range);
}

struct pool *vgpu_pool_goes(CUmemoryPool handle)
{
	struct pool *p = handle ? find_pool(handle) : NULL;

	/* Before the driver can give the same handle to another pool. */
	if (p) {
		/* Who frees just now has not said so yet: it still holds something. */
		if (__atomic_load_n(&p->live, __ATOMIC_SEQ_CST) == 0 && !vgpu_capturing() &&
		    vgpu_real.cuMemPoolTrimTo && trim_locked(p))
			vgpu_frees_none(&p->frees);
		p->was = handle;
		__atomic_store_n(&p->handle, DESTROYED, __ATOMIC_SEQ_CST);
	}
	return p;
}

void vgpu_pool_gone(struct pool *p, CUmemoryPool handle, CUresult r)
{
	if (p && r != CUDA_SUCCESS)
		__atomic_store_n(&p->handle, handle, __ATOMIC_SEQ_CST);
	if (p)
		end_if_over(p);
	else
		pthread_mutex_unlock(&vgpu_pools_lock);
}
