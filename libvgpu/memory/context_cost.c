/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_cost.c - see memory.h. A context's cost is charged before it is made; afterwards
 * the card's own count of this process corrects the charge. Inside a job gresd makes the
 * comparison for all processes (mem_outside in the grant); without gresd this process's watcher
 * makes it, on its own slot (compare.c).
 */
#include "account.h"
#include "memory.h"

uint64_t vgpu_context_bytes(int card)
{
	uint64_t bytes = vgpu_state.grant->card[card].mem_overhead;

	return bytes ? bytes + VGPU_CONTEXT_GROWTH : 0;
}

int vgpu_overhead_context(int card)
{
	uint64_t bytes = vgpu_context_bytes(card);

	if (bytes == 0)
		return 0;
	vgpu_mem_begin();
	int r = vgpu_charge(card, bytes);
	if (r == 0)
		ADD(&vgpu_my(card)->mem_context, bytes);
	vgpu_mem_end();
	return r;
}

void vgpu_overhead_lower(int card, uint64_t bytes)
{
	vgpu_charge_less(card, &vgpu_my(card)->mem_context, bytes);
}

void vgpu_overhead_context_gone(int card)
{
	vgpu_mem_begin();
	vgpu_overhead_lower(card, vgpu_context_bytes(card));
	vgpu_mem_end();
}

uint64_t vgpu_overhead_charged(int card)
{
	return LOAD(&vgpu_my(card)->mem_context);
}

void vgpu_overhead_raise(int card, uint64_t bytes)
{
	ADD(&vgpu_my(card)->mem_context, bytes);
	vgpu_charge_forced(card, bytes);
}
