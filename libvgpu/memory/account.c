/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - see account.h. Each allocation: charge, ask the driver, keep the charge or take it
 * back. No lock is held while the driver works.
 */
#include <errno.h>

#include "../base/log.h"
#include "../job/tell.h"
#include "../region_ops.h"
#include "account.h"

uint64_t vgpu_managed_bytes;

int vgpu_charge_now(int card, uint64_t bytes)
{
	if (vgpu_absurd(bytes) || (unlikely(!vgpu_state.counted) && vgpu_limit(card)))
		return -ENOMEM;
	VGPU_NO_CANCEL;
	return vgpu_mem_reserve(&vgpu_state.cache, vgpu_state.slot, (unsigned)card, bytes,
				vgpu_limit(card), vgpu_mem_outside(card));
}

int vgpu_charge(int card, uint64_t bytes)
{
	int r = vgpu_charge_now(card, bytes);

	if (unlikely(r) && vgpu_ended_make_room(card, bytes))
		r = vgpu_charge_now(card, bytes);
	return r;
}

void vgpu_release(int card, uint64_t bytes)
{
	vgpu_mem_release(vgpu_state.slot, (unsigned)card, bytes);
}

void vgpu_item_release(const struct vgpu_item *item)
{
	vgpu_release(item->card, item->size);
}

void vgpu_charge_forced(int card, uint64_t bytes)
{
	ADD(&vgpu_my(card)->mem, bytes);
}

int vgpu_charge_up_to(int card, uint64_t *charged, uint64_t want)
{
	uint64_t have = LOAD(charged);

	while (have < want) {
		if (vgpu_charge(card, want - have))
			return -ENOMEM;
		if (CAS(charged, &have, want))
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
	uint64_t have = LOAD(charged), keep;

	while (have > want) {
		if (!CAS(charged, &have, want))
			continue;
		/* Who has added to live before saw the charge as it was, and took it for
		 * enough; who adds now sees it lowered, and pays. */
		keep = of ? of(LOAD(live)) : LOAD(live);
		keep = keep < want ? want : keep < have ? keep : have;
		vgpu_release(card, have - keep);
		ADD(charged, keep - want);
		return;
	}
}

void vgpu_charge_less(int card, uint64_t *charged, uint64_t bytes)
{
	uint64_t have = LOAD(charged), less;

	do
		less = bytes < have ? bytes : have;
	while (!CAS(charged, &have, have - less));
	vgpu_release(card, less);
}

CUresult vgpu_oom(int card, uint64_t bytes)
{
	if (!vgpu_limit(card)) /* the driver would say the same */
		return CUDA_ERROR_OUT_OF_MEMORY;
	ADD(&vgpu_state.cache.header->budget[card].refused, 1);
	vgpu_log(VGPU_LOG_WARN, "memory: card %d: want %llu bytes, %llu of %llu used", card,
		 (unsigned long long)bytes, (unsigned long long)vgpu_mem_used(card),
		 (unsigned long long)vgpu_limit(card));
	vgpu_tell_oom(card, bytes);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static __thread unsigned busy;

bool vgpu_mem_busy(void)
{
	return busy;
}

void vgpu_mem_begin(void)
{
	busy++;
	if (vgpu_state.slot)
		ADD(&vgpu_state.slot->mem_begun, 1);
}

void vgpu_mem_end(void)
{
	busy--;
	if (vgpu_state.slot)
		ADD(&vgpu_state.slot->mem_done, 1);
}

CUresult vgpu_mem_done(int card, uint64_t bytes, CUresult r)
{
	if (r != CUDA_SUCCESS)
		vgpu_release(card, bytes);
	vgpu_mem_end();
	return r;
}
