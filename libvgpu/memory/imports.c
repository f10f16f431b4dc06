/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports.c - who pays for memory of other processes. The card counts it once, for one of the
 * processes that have it. So while the other processes of the job pay for as many bytes on that
 * card, their imports cost nothing. This process pays for the rest: the exporter is unknown, or of
 * another job, or has ended. A charge stays until the import is released.
 */
#include <errno.h>

#include "../region_ops.h"
#include "account.h"
#include "shared.h"

static VGPU_PRIVATE struct {
	uint64_t bytes, charged;
} imports[VGPU_MAX_CARDS];

/* The part of bytes that other processes do not pay for. */
static uint64_t rest_of(int card, uint64_t bytes)
{
	uint64_t sum = vgpu_mem_sum(&vgpu_state.cache, (unsigned)card);
	uint64_t own = LOAD(&vgpu_my(card)->mem);
	uint64_t others = sum > own ? sum - own : 0;

	return bytes > others ? bytes - others : 0;
}

int vgpu_imports_more(int card, uint64_t bytes)
{
	uint64_t all = ADD(&imports[card].bytes, bytes);
	uint64_t want = rest_of(card, all), had;

	/* To make room for the charge, slots of processes that have ended are cleared: then the others
	 * pay for less than before. */
	do {
		had = want;
		if (vgpu_charge_up_to(card, &imports[card].charged, want)) {
			vgpu_imports_less(card, bytes);
			return -ENOMEM;
		}
		want = rest_of(card, all);
	} while (want > had);
	return 0;
}

void vgpu_imports_less(int card, uint64_t bytes)
{
	uint64_t left = SUB(&imports[card].bytes, bytes);

	vgpu_charge_down_to(card, &imports[card].charged, left, &imports[card].bytes, NULL);
}

bool vgpu_imports_settle(int card)
{
	uint64_t have = LOAD(&imports[card].charged);
	uint64_t all = LOAD(&imports[card].bytes), want;

	if (all <= have)
		return false;
	want = rest_of(card, all);
	if (want <= have)
		return false;
	vgpu_charge_forced(card, want - have);
	if (!CAS(&imports[card].charged, &have, want))
		vgpu_release(card, want - have);
	return true;
}
