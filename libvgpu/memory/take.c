/* SPDX-License-Identifier: Apache-2.0 */
/* take.c - the first step of an allocation. Above the pools, whose unused memory must not refuse anything. */
#include <errno.h>

#include "account.h"
#include "imports.h"
#include "pool.h"

int vgpu_mem_take(int card, uint64_t bytes)
{
	int r;

	vgpu_mem_begin();
	vgpu_imports_settle(card);
	r = vgpu_charge_now(card, bytes);
	if (r) {
		/* The driver, too, takes from its pools what nobody uses before it refuses. */
		vgpu_pools_trim(card);
		vgpu_pools_settle();
		r = vgpu_charge(card, bytes);
	}
	/* To make room, slots of processes that have ended may have been cleared. */
	if (r == 0 && vgpu_imports_settle(card) && vgpu_charge_now(card, 0)) {
		vgpu_release(card, bytes);
		r = -ENOMEM;
	}
	if (r)
		vgpu_mem_end();
	return r;
}
