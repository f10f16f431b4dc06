/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_order.c - whose launch goes next when the budget of a job holds several
 * processes back: the one that has waited longest. Without an order, work that is
 * longer than the budget goes to whoever happens to look first, and a process can
 * miss its turn many times in a row.
 */
#include <stdint.h>

#include "region_ops.h"

/* A waiting launch looks at least every 2 ms. One that has not for so long is stopped,
 * or dead, and nobody waits for it. */
#define STALE_MS 50u

static uint32_t ms_of(uint64_t now_ns)
{
	return (uint32_t)(now_ns / 1000000u);
}

bool vgpu_order_first(struct vgpu_budget *b, uint64_t since_ns, uint64_t now_ns)
{
	uint64_t first = LOAD(&b->first_since_ns);
	uint32_t now_ms = ms_of(now_ns);
	uint32_t ago = now_ms - LOAD(&b->first_seen_ms);
	/* Another process may have looked a moment after this one took the time. */
	bool there = ago <= STALE_MS || ago > UINT32_MAX - STALE_MS;

	if (first != since_ns) {
		if (first && first < since_ns && there)
			return false;
		if (!CAS(&b->first_since_ns, &first, since_ns))
			return false;
	}
	STORE(&b->first_seen_ms, now_ms);
	return true;
}

void vgpu_order_leave(struct vgpu_budget *b, uint64_t since_ns)
{
	CAS(&b->first_since_ns, &since_ns, 0);
}
