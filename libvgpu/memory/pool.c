/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - stream-ordered allocation. A pool takes memory from the card
 * in larger pieces than it is asked for and keeps freed memory for a while, so
 * the charge of a pool is the larger of what its users hold and what it has
 * reserved, brought up to date at growth, trims and refusals, and by the watcher.
 */
#include <errno.h>
#include <stdlib.h>

#include "../base/table.h"
#include "../driver/captures.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "account.h"
#include "owner.h"
#include "pool.h"
#include "shared.h"

/* The granularity of allocations inside a pool. */
#define POOL_ALIGN 512ull
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
	if (!__atomic_compare_exchange_n(&p->charged, &have, want, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		vgpu_release(p->card, want - have);
}

void vgpu_pool_settle(struct pool *p)
{
	pthread_mutex_lock(&vgpu_pools_lock);
	settle_locked(p);
	pthread_mutex_unlock(&vgpu_pools_lock);
}

static bool unsettled(void)
{
	return __atomic_load_n(&changed, __ATOMIC_SEQ_CST) !=
	       __atomic_load_n(&settled, __ATOMIC_SEQ_CST);
}

void vgpu_pools_settle(void)
{
	uint64_t changes = __atomic_load_n(&changed, __ATOMIC_SEQ_CST);
	uint64_t keeps = __atomic_load_n(&kept, __ATOMIC_SEQ_CST);

	vgpu_shared_settle();
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

void vgpu_pools_tick(uint64_t now)
{
	static uint64_t last;
	uint64_t every = unsettled() ? SETTLE_NS : SETTLE_KEPT_NS;

	if (now - last < every)
		return;
	last = now;
	vgpu_pools_settle();
}

/* Memory that the card's pools keep but nobody uses: the driver gets it back. */
static void trim_pools(int card)
{
	for (struct pools *block = &pools; block && !vgpu_capturing(); block = after(block))
		for (int i = 0; i < POOLS && vgpu_real.cuMemPoolTrimTo; i++) {
			struct pool *p = &block->pool[i];

			if (!__atomic_load_n(&p->handle, __ATOMIC_RELAXED))
				continue;
			pthread_mutex_lock(&vgpu_pools_lock);
			if (p->handle && p->handle != DESTROYED && p->card == card) {
				vgpu_real.cuMemPoolTrimTo(p->handle, 0);
				settle_locked(p);
			}
			pthread_mutex_unlock(&vgpu_pools_lock);
		}
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

void vgpu_pools_in_child(void)
{
	pthread_mutex_init(&vgpu_pools_lock, NULL);
}

static uint64_t whole_steps(uint64_t bytes)
{
	return (bytes + VGPU_POOL_STEP - 1) / VGPU_POOL_STEP * VGPU_POOL_STEP;
}

/* Charges more for the pool: what is announced and what the card counts now differ
 * until the driver has grown it. */
static int charge_steps(struct vgpu_booking *b, uint64_t live)
{
	if (!b->marked)
		vgpu_mem_begin();
	b->marked = true;
	return vgpu_charge_up_to(b->pool->card, &b->pool->charged, whole_steps(live));
}

/* Makes room for the booking in the pool; 0 or -ENOMEM. */
static int grow(struct vgpu_booking *b)
{
	struct pool *p = b->pool;
	uint64_t live = __atomic_add_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);

	if (likely(live <= __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST)) ||
	    charge_steps(b, live) == 0)
		return 0;
	/* Not held while the pools are brought up to date: settling charges
	 * whatever is live without asking. */
	__atomic_sub_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);
	trim_pools(p->card);
	live = __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + b->bytes;
	if (charge_steps(b, live))
		return -ENOMEM;
	__atomic_add_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);
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
				 .owner = vgpu_context_owner(p->card),
				 .other = (uint64_t)(uintptr_t)p};

	if (p->managed)
		__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	vgpu_table_put(&async_ptrs, &item);
	/* Near the charge the driver may have grown the pool: see by how much. */
	if (__atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + size >
	    __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST))
		vgpu_pool_settle(p);
}

/* The program no longer holds it. True: it was the last of a pool that is destroyed. */
static bool given(struct pool *p, const struct vgpu_item *item)
{
	/* A descriptor keeps the whole step, which the pool may have given back. */
	vgpu_shared_freed(item->key, p->card, whole_steps(item->size));
	if (p->managed)
		__atomic_sub_fetch(&vgpu_managed_bytes, item->size, __ATOMIC_RELAXED);
	return __atomic_sub_fetch(&p->live, item->size, __ATOMIC_SEQ_CST) == 0 &&
	       __atomic_load_n(&p->handle, __ATOMIC_SEQ_CST) == DESTROYED;
}

bool vgpu_pool_forget(CUdeviceptr dptr)
{
	struct vgpu_item item;
	struct pool *p;

	if (!vgpu_table_take(&async_ptrs, dptr, &item))
		return false;
	p = (struct pool *)(uintptr_t)item.other;
	if (given(p, &item)) {
		pthread_mutex_lock(&vgpu_pools_lock);
		/* Unless another thread was first, or it could not be destroyed. */
		if (p->handle == DESTROYED && __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) == 0)
			end_pool(p);
		else
			pthread_mutex_unlock(&vgpu_pools_lock);
	}
	__atomic_add_fetch(&changed, 1, __ATOMIC_SEQ_CST);
	return true;
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
	__atomic_add_fetch(&changed, 1, __ATOMIC_SEQ_CST);
	vgpu_pools_settle();
}

void vgpu_pools_exported(const struct vgpu_range *range)
{
	vgpu_table_sweep(&async_ptrs, (uintptr_t)range, vgpu_shared_range);
}

CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size)
{
	*b = (struct vgpu_booking){.pool = p, .bytes = rounded(size)};
	if (likely(grow(b) == 0))
		return CUDA_SUCCESS;
	vgpu_mem_end();
	return vgpu_oom(p->card, size);
}

CUresult vgpu_pool_made(const struct vgpu_booking *b, const CUdeviceptr *dptr, CUresult r)
{
	if (r == CUDA_SUCCESS)
		keep(b->pool, *dptr, b->bytes);
	else {
		__atomic_sub_fetch(&b->pool->live, b->bytes, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&changed, 1, __ATOMIC_SEQ_CST);
	}
	if (b->marked)
		vgpu_mem_end();
	return r;
}

struct pool *vgpu_pool_goes(CUmemoryPool handle)
{
	struct pool *p = handle ? find_pool(handle) : NULL;

	/* Before the driver can give the same handle to another pool. */
	if (p) {
		p->was = handle;
		__atomic_store_n(&p->handle, DESTROYED, __ATOMIC_SEQ_CST);
	}
	return p;
}

void vgpu_pool_gone(struct pool *p, CUmemoryPool handle, CUresult r)
{
	if (p && r != CUDA_SUCCESS)
		__atomic_store_n(&p->handle, handle, __ATOMIC_SEQ_CST);
	if (p && r == CUDA_SUCCESS && __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) == 0)
		end_pool(p);
	else
		pthread_mutex_unlock(&vgpu_pools_lock);
}
