/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - linear, pitched and managed memory. Each allocation: charge, ask the
 * driver, keep the charge or take it back. No lock is held while the driver works.
 */
#ifdef VGPU_PRELOAD
#include <errno.h>
#include <stdio.h>

#include "vgpu.h"

/* Rows of pitched memory are aligned to at most this on every card so far. */
#define PITCH_ALIGN 512u

static struct vgpu_table linear = VGPU_TABLE_INIT;
uint64_t vgpu_managed_bytes;

/* vgpu_item.other of an entry of the table */
#define KIND_MANAGED 1u /* cuMemAllocManaged: charged in steps */
#define KIND_PAGED 2u   /* beyond the physical share: charged as it is */
/* The card gives managed memory in steps of this many bytes, and one step more for
 * its bookkeeping: a process that holds n bytes takes n / step + 1 steps (measured
 * on an H200, driver 580, for 1 MiB to 3.5 GiB). */
#define MANAGED_STEP (128ull << 20)

static struct {
	uint64_t live, charged;
} managed[VGPU_MAX_CARDS];

static int reserve(int card, uint64_t bytes)
{
	int r, cancel;

	if (unlikely(!vgpu_state.counted) && vgpu_limit(card))
		return -ENOMEM;
	cancel = vgpu_no_cancel();
	r = vgpu_mem_reserve(&vgpu_state.cache, vgpu_state.slot, (unsigned)card, bytes,
			     vgpu_limit(card), vgpu_mem_outside(card));
	vgpu_cancel_as(cancel);
	return r;
}

int vgpu_charge(int card, uint64_t bytes)
{
	int r = reserve(card, bytes);

	if (unlikely(r) && vgpu_ended_make_room(card, bytes))
		r = reserve(card, bytes);
	return r;
}

void vgpu_release(int card, uint64_t bytes)
{
	vgpu_mem_release(vgpu_state.slot, (unsigned)card, bytes);
}

/* Bytes that the card has already given: they count, the next one pays. */
void vgpu_charge_forced(int card, uint64_t bytes)
{
	__atomic_add_fetch(&vgpu_my(card)->mem, bytes, __ATOMIC_SEQ_CST);
}

int vgpu_charge_up_to(int card, uint64_t *charged, uint64_t want)
{
	uint64_t have = __atomic_load_n(charged, __ATOMIC_SEQ_CST);

	while (have < want) {
		if (vgpu_charge(card, want - have))
			return -ENOMEM;
		if (__atomic_compare_exchange_n(charged, &have, want, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST))
			return 0;
		vgpu_release(card, want - have);
	}
	return 0;
}

void vgpu_charge_moves(int card, uint64_t from, uint64_t to)
{
	if (to > from)
		vgpu_charge_forced(card, to - from);
	else
		vgpu_release(card, from - to);
}

void vgpu_charge_down_to(int card, uint64_t *charged, uint64_t want, const uint64_t *live,
			 uint64_t (*of)(uint64_t))
{
	uint64_t have = __atomic_load_n(charged, __ATOMIC_SEQ_CST), keep;

	while (have > want) {
		if (!__atomic_compare_exchange_n(charged, &have, want, false, __ATOMIC_SEQ_CST,
						 __ATOMIC_SEQ_CST))
			continue;
		/* Who has added to live before saw the charge as it was, and took it for
		 * enough; who adds now sees it lowered, and pays. */
		keep = of(__atomic_load_n(live, __ATOMIC_SEQ_CST));
		keep = keep < want ? want : keep < have ? keep : have;
		vgpu_release(card, have - keep);
		__atomic_add_fetch(charged, keep - want, __ATOMIC_SEQ_CST);
		return;
	}
}

CUresult vgpu_oom(int card, uint64_t bytes)
{
	__atomic_add_fetch(&vgpu_state.cache.header->budget[card].refused, 1, __ATOMIC_RELAXED);
	vgpu_log(VGPU_LOG_WARN, "memory: card %d: want %llu bytes, %llu of %llu used", card,
		 (unsigned long long)bytes, (unsigned long long)vgpu_mem_used(card),
		 (unsigned long long)vgpu_limit(card));
	vgpu_tell_oom(card, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_mem_begin(void)
{
	if (vgpu_state.slot)
		__atomic_add_fetch(&vgpu_state.slot->mem_begun, 1, __ATOMIC_SEQ_CST);
}

void vgpu_mem_end(void)
{
	if (vgpu_state.slot)
		__atomic_add_fetch(&vgpu_state.slot->mem_done, 1, __ATOMIC_SEQ_CST);
}

int vgpu_mem_take(int card, uint64_t bytes)
{
	int r;

	vgpu_mem_begin();
	r = reserve(card, bytes);
	if (r) {
		/* Pool memory that nobody uses any more must not refuse an allocation. */
		vgpu_pools_settle();
		r = vgpu_charge(card, bytes);
	}
	if (r)
		vgpu_mem_end();
	return r;
}

CUresult vgpu_mem_done(int card, uint64_t bytes, CUresult r)
{
	if (r != CUDA_SUCCESS)
		vgpu_release(card, bytes);
	vgpu_mem_end();
	return r;
}

static void remember(int card, CUdeviceptr dptr, uint64_t size, uint64_t kind)
{
	struct vgpu_item item = {.key = dptr,
				 .size = size,
				 .card = card,
				 .refs = 1,
				 .other = kind,
				 .owner = vgpu_context_owner(card)};

	if (kind)
		__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);

	/* Forgotten for want of memory: stays charged until the process ends. */
	vgpu_table_put(&linear, &item);
}

static uint64_t managed_bytes(uint64_t live)
{
	return live ? (live / MANAGED_STEP + 1) * MANAGED_STEP : 0;
}

/* Gives back size bytes of managed memory, and the steps that they were in. */
static void managed_less(int card, uint64_t size)
{
	uint64_t live = __atomic_sub_fetch(&managed[card].live, size, __ATOMIC_SEQ_CST);

	__atomic_sub_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	vgpu_charge_down_to(card, &managed[card].charged, managed_bytes(live), &managed[card].live,
			    managed_bytes);
}

static void freed(const struct vgpu_item *item)
{
	if (item->other == KIND_MANAGED) {
		managed_less(item->card, item->size);
		return;
	}
	if (item->other == KIND_PAGED)
		__atomic_sub_fetch(&vgpu_managed_bytes, item->size, __ATOMIC_RELAXED);
	vgpu_release(item->card, item->size);
}

static void forget(CUdeviceptr dptr)
{
	struct vgpu_item item;

	if (vgpu_table_take(&linear, dptr, &item))
		freed(&item);
	else
		vgpu_pool_forget(dptr);
}

static bool ended(const struct vgpu_item *item, uint64_t owner)
{
	if (item->owner != owner)
		return false;
	freed(item);
	return true;
}

void vgpu_linear_ended(uint64_t owner)
{
	vgpu_table_sweep(&linear, owner, ended);
}

/* Where a site lends more memory than the card has. */
static bool may_page(int card)
{
	return vgpu_state.grant->card[card].mem_physical && vgpu_real.cuMemAllocManaged;
}

/* True when the job is past what the card really has for it. */
static bool past_physical(int card)
{
	return may_page(card) && vgpu_mem_used(card) > vgpu_state.grant->card[card].mem_physical;
}

/* A linear allocation that the card pages in and out. It is charged already. */
static CUresult alloc_paged(CUdeviceptr *dptr, size_t size)
{
	static bool said;
	CUresult r = vgpu_real.cuMemAllocManaged(dptr, size, CU_MEM_ATTACH_GLOBAL);
	CUdevice dev;

	if (r == CUDA_SUCCESS && vgpu_real.cuMemAdvise &&
	    vgpu_real.cuCtxGetDevice(&dev) == CUDA_SUCCESS)
		vgpu_real.cuMemAdvise(*dptr, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev);
	if (r == CUDA_SUCCESS && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		vgpu_warn("vgpu: memory: this job is past the card's physical share; "
			  "further allocations are paged and slower");
	return r;
}

/* --------------------------------------------------------------- allocation */
CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size)
{
	CUresult r;
	bool paged;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemAlloc_v2)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAlloc_v2(dptr, size);
	if (vgpu_mem_take(card, size))
		return vgpu_oom(card, size);
	paged = past_physical(card);
	r = paged ? alloc_paged(dptr, size) : vgpu_real.cuMemAlloc_v2(dptr, size);
	/* Others have the rest of the card, or it is in pieces. */
	if (r == CUDA_ERROR_OUT_OF_MEMORY && !paged && may_page(card)) {
		paged = true;
		r = alloc_paged(dptr, size);
	}
	if (r == CUDA_SUCCESS)
		remember(card, *dptr, size, paged ? KIND_PAGED : 0);
	return vgpu_mem_done(card, size, r);
}

CUresult cuMemAlloc(unsigned *dptr, unsigned size)
{
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemAlloc)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAlloc(dptr, size);
	if (vgpu_mem_take(card, size))
		return vgpu_oom(card, size);
	r = vgpu_real.cuMemAlloc(dptr, size);
	if (r == CUDA_SUCCESS)
		remember(card, *dptr, size, 0);
	return vgpu_mem_done(card, size, r);
}

/* In full: any page may come to the card. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size, unsigned flags)
{
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemAllocManaged)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAllocManaged(dptr, size, flags);
	vgpu_mem_begin();
	__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	if (vgpu_charge_up_to(card, &managed[card].charged,
			      managed_bytes(__atomic_add_fetch(&managed[card].live, size,
							       __ATOMIC_SEQ_CST)))) {
		managed_less(card, size);
		vgpu_mem_end();
		return vgpu_oom(card, size);
	}
	r = vgpu_real.cuMemAllocManaged(dptr, size, flags);
	if (r == CUDA_SUCCESS) {
		remember(card, *dptr, size, KIND_MANAGED);
		__atomic_sub_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	} else {
		managed_less(card, size);
	}
	vgpu_mem_end();
	return r;
}

static uint64_t pitched_bound(uint64_t width, uint64_t height)
{
	return (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN * height;
}

/* Charges the bound, then gives back what the driver's pitch did not need. */
static void settle_pitch(int card, CUdeviceptr dptr, uint64_t bound, uint64_t real)
{
	if (real < bound)
		vgpu_release(card, bound - real);
	else if (real > bound)
		vgpu_charge_forced(card, real - bound);
	remember(card, dptr, real, 0);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
			    unsigned element)
{
	uint64_t bound = pitched_bound(width, height);
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemAllocPitch_v2)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	if (card < 0 || !dptr || !pitch)
		return vgpu_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
	if (vgpu_mem_take(card, bound))
		return vgpu_oom(card, bound);
	r = vgpu_real.cuMemAllocPitch_v2(dptr, pitch, width, height, element);
	if (r == CUDA_SUCCESS)
		settle_pitch(card, *dptr, bound, (uint64_t)*pitch * height);
	return vgpu_mem_done(card, bound, r);
}

CUresult cuMemAllocPitch(unsigned *dptr, unsigned *pitch, unsigned width, unsigned height,
			 unsigned element)
{
	uint64_t bound = pitched_bound(width, height);
	CUresult r;
	int card;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemAllocPitch)
		return CUDA_ERROR_NO_DEVICE;
	card = vgpu_card_current();
	if (card < 0 || !dptr || !pitch)
		return vgpu_real.cuMemAllocPitch(dptr, pitch, width, height, element);
	if (vgpu_mem_take(card, bound))
		return vgpu_oom(card, bound);
	r = vgpu_real.cuMemAllocPitch(dptr, pitch, width, height, element);
	if (r == CUDA_SUCCESS)
		settle_pitch(card, *dptr, bound, (uint64_t)*pitch * height);
	return vgpu_mem_done(card, bound, r);
}

/* Frees always go through; the charge goes only when the driver has freed. */
CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemFree_v2)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_mem_begin();
	r = vgpu_real.cuMemFree_v2(dptr);
	if (r == CUDA_SUCCESS && dptr && vgpu_state.grant)
		forget(dptr);
	vgpu_mem_end();
	return r;
}

CUresult cuMemFree(unsigned dptr)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMemFree)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_mem_begin();
	r = vgpu_real.cuMemFree(dptr);
	if (r == CUDA_SUCCESS && dptr && vgpu_state.grant)
		forget(dptr);
	vgpu_mem_end();
	return r;
}
#endif
