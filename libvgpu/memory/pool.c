/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - stream-ordered allocation. A pool takes memory from the card
 * in larger pieces than it is asked for and keeps freed memory for a while, so
 * the charge of a pool is the larger of what its users hold and what it has
 * reserved, brought up to date at growth, trims and refusals, and by the watcher.
 */
#include <stdlib.h>

#include "../driver/captures.h"
#include "account.h"
#include "pool.h"
#include "shared.h"

/* The handle of a pool that the program destroyed while it held memory of it: the
 * driver keeps such a pool until the last of that is freed, and so does the charge. */
#define DESTROYED ((CUmemoryPool)UINTPTR_MAX)

static VGPU_PRIVATE struct pool *pools; /* Entries stay in the list, and are used again. */
VGPU_PRIVATE pthread_mutex_t vgpu_pools_lock = PTHREAD_MUTEX_INITIALIZER;
VGPU_TABLE(vgpu_addresses);
/* Each change that can lower what the pools have reserved raises changed. settled is the value of
 * changed at the last check that found no unused memory in the pools. */
static VGPU_PRIVATE uint64_t changed, settled;
/* The watcher asks the pools this often after a change, and else for what they still keep. */
#define SETTLE_NS 20000000u
#define SETTLE_KEPT_NS 250000000u

/* A handle is looked for far more often than it comes or goes: no lock to find one. */
static struct pool *find_pool(CUmemoryPool handle)
{
	struct pool *p = LOAD(&pools);

	while (p && LOAD(&p->handle) != handle)
		p = p->next;
	return p;
}

/* vgpu_pools_lock is held; NULL when the process has no memory for more entries. */
static struct pool *new_pool(CUmemoryPool handle, int card)
{
	struct pool *p = find_pool(NULL);

	if (!p && (p = calloc(1, sizeof *p)) != NULL) {
		p->next = pools;
		STORE(&pools, p);
	}
	if (p) {
		p->card = card;
		p->managed = false;
		STORE(&p->grown, false);
		vgpu_frees_none(&p->frees);
		STORE(&p->handle, handle);
	}
	return p;
}

struct pool *vgpu_pool_of(CUmemoryPool handle, int card)
{
	struct pool *p = find_pool(handle);

	if (p || card < 0)
		return p;
	VGPU_LOCK(&vgpu_pools_lock);
	p = find_pool(handle);
	return p ? p : new_pool(handle, card);
}

/* Asks the driver for an attribute. vgpu_pools_lock is held. */
static bool ask(const struct pool *p, int attribute, void *value)
{
	return p->handle && p->handle != DESTROYED && vgpu_real.cuMemPoolGetAttribute &&
	       vgpu_real.cuMemPoolGetAttribute(p->handle, attribute, value) == CUDA_SUCCESS;
}

/* Sets the charge to the memory of the pool, up or down. Returns true if the pool has memory that the
 * program does not use. Call this with vgpu_pools_lock held. */
static bool settle_charge(struct pool *p)
{
	uint64_t reserved = 0, live, want, have;

	STORE(&p->unasked, 0);
	if (!ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
		return false;
	have = LOAD(&p->charged);
	live = LOAD(&p->live);
	want = reserved > live ? reserved : live;
	if (want <= have) {
		vgpu_charge_down_to(p->card, &p->charged, want, &p->live, NULL);
	} else {
		vgpu_charge_forced(p->card, want - have);
		STORE(&p->grown, true);
		if (!CAS(&p->charged, &have, want))
			vgpu_release(p->card, want - have);
	}
	return reserved > live;
}

bool vgpu_pool_settle(struct pool *p)
{
	VGPU_LOCK(&vgpu_pools_lock);

	if (p->handle != DESTROYED || LOAD(&p->live))
		return settle_charge(p);
	if (vgpu_capturing() || !vgpu_frees_passed(&p->frees))
		return true;
	STORE(&p->handle, NULL);
	vgpu_shared_release((uintptr_t)p->was, p->card, EXCHANGE(&p->charged, 0));
	return false;
}

bool vgpu_pool_streams_wait(struct pool *p)
{
	VGPU_LOCK(&vgpu_pools_lock);
	int allowed = 1;

	ask(p, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &allowed);
	return allowed;
}

void vgpu_pools_changed(void)
{
	ADD(&changed, 1);
}

void vgpu_pools_waited(void)
{
	uint64_t changes = LOAD(&changed);
	bool keep = false;

	if (changes == LOAD(&settled) || vgpu_capturing())
		return;
	for (struct pool *p = LOAD(&pools); p; p = p->next)
		if (LOAD(&p->handle))
			keep |= vgpu_pool_settle(p);
	if (!keep)
		STORE(&settled, changes);
}

void vgpu_pools_settle(void)
{
	vgpu_shared_settle();
	vgpu_pools_waited();
}

void vgpu_pools_tick(uint64_t now)
{
	static uint64_t last, seen;
	uint64_t changes = LOAD(&changed);

	if (now - last < (changes != seen ? SETTLE_NS : SETTLE_KEPT_NS))
		return;
	last = now;
	seen = changes;
	vgpu_pools_settle();
}

/* Gives unused memory of the pool back to the driver. Call this with vgpu_pools_lock held. */
static bool trim(struct pool *p)
{
	if (!p->handle || p->handle == DESTROYED || !vgpu_real.cuMemPoolTrimTo)
		return false;
	vgpu_frees_passed(&p->frees);
	return vgpu_real.cuMemPoolTrimTo(p->handle, 0) == CUDA_SUCCESS;
}

void vgpu_pools_trim(int card)
{
	for (struct pool *p = LOAD(&pools); p && !vgpu_capturing(); p = p->next) {
		VGPU_LOCK(&vgpu_pools_lock);

		if (p->card == card) {
			trim(p);
			settle_charge(p);
		}
	}
}

void vgpu_pool_keep(struct pool *p, CUdeviceptr dptr, uint64_t size)
{
	struct vgpu_item item = {.key = dptr,
				 .size = size,
				 .card = p->card,
				 .owner = vgpu_context_owner(p->card),
				 .kind = VGPU_OF_POOL,
				 .other = (uintptr_t)p};

	if (p->managed)
		ADD(&vgpu_managed_bytes, size);
	vgpu_table_put(&vgpu_addresses, &item);
}

static struct pool *pool_of(const struct vgpu_item *item)
{
	return (struct pool *)(uintptr_t)item->other;
}

/* The program no longer holds it. */
static void given(const struct vgpu_item *item)
{
	struct pool *p = pool_of(item);

	/* A descriptor keeps the whole step, which the pool may have given back. */
	vgpu_shared_freed(item->key, p->card, vgpu_pool_steps(item->size));
	if (p->managed)
		SUB(&vgpu_managed_bytes, item->size);
	SUB(&p->live, item->size);
	vgpu_pools_changed();
}

void vgpu_pool_freed_in(const struct vgpu_item *item, CUstream stream)
{
	if (vgpu_limit(item->card))
		vgpu_frees_mark(&pool_of(item)->frees, stream, item->size);
}

void vgpu_pool_freed(const struct vgpu_item *item)
{
	given(item);
	if (LOAD(&pool_of(item)->handle) == DESTROYED)
		vgpu_pool_settle(pool_of(item));
}

struct of_pool {
	const struct pool *pool;
	uint64_t owner;
};

static bool is_of(const struct vgpu_item *item, uint64_t arg)
{
	const struct of_pool *of = (const struct of_pool *)(uintptr_t)arg;

	return item->kind == VGPU_OF_POOL && item->owner == of->owner && pool_of(item) == of->pool;
}

/* A pool is the device's, and CUDA does not say whether an allocation of it ends with the
 * context in which it was made. So the pool is asked, and what it still has counts on. The bytes that
 * another thread is just taking can hide some. They are in what the pool has reserved, and so charged. */
void vgpu_pools_ended(uint64_t owner)
{
	for (struct pool *p = LOAD(&pools); p; p = p->next) {
		struct of_pool of = {p, owner};
		uint64_t used = 0, ending = 0;

		if (!LOAD(&p->live))
			continue;
		VGPU_LOCK(&vgpu_pools_lock);
		struct vgpu_item *list =
			vgpu_table_detach_if(&vgpu_addresses, (uintptr_t)&of, is_of);
		for (const struct vgpu_item *item = list; item; item = item->next)
			ending += item->size;
		if (ask(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) &&
		    used + ending <= LOAD(&p->live))
			vgpu_table_drop(&vgpu_addresses, list, given);
		else
			vgpu_table_attach(&vgpu_addresses, list);
	}
	vgpu_pools_changed();
	vgpu_pools_settle();
}

CUresult vgpu_pool_destroy(CUmemoryPool handle)
{
	uint64_t reserved = 0;

	pthread_mutex_lock(&vgpu_pools_lock);
	struct pool *p = handle ? find_pool(handle) : NULL;
	if (p) {
		/* Who frees just now has not said so yet: it still holds something. */
		if (LOAD(&p->live) == 0 && !vgpu_capturing() && trim(p) &&
		    ask(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved == 0)
			vgpu_frees_none(&p->frees);
		p->was = handle;
		/* Before the driver can give the same handle to another pool. */
		STORE(&p->handle, DESTROYED);
	}
	CUresult r = vgpu_real.cuMemPoolDestroy(handle);
	if (p && r != CUDA_SUCCESS)
		STORE(&p->handle, handle);
	pthread_mutex_unlock(&vgpu_pools_lock);
	if (p && vgpu_pool_settle(p))
		vgpu_pools_changed();
	return r;
}
