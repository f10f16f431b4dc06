/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - see memory.h. Only the watcher is here. */
#include "account.h"
#include "memory.h"

#define MEASURE_NS 250000000u
/* Short programs never pay for opening NVML. */
#define FIRST_MEASURE_NS 1000000000u

/* The card's count may lag behind what has just been allocated: it lowers the
 * charge only to the highest of so many comparisons. */
#define COMPARISONS 4

static uint64_t compared[VGPU_MAX_CARDS][COMPARISONS];
static unsigned comparisons[VGPU_MAX_CARDS];

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Notes one comparison. Returns the highest of the last ones, or UINT64_MAX
 * while there are too few. */
static uint64_t highest(int card, uint64_t want)
{
	uint64_t max = 0;

	compared[card][comparisons[card]++ % COMPARISONS] = want;
	for (int i = 0; i < COMPARISONS; i++)
		max = most(max, compared[card][i]);
	return comparisons[card] < COMPARISONS ? UINT64_MAX : max;
}

/* Corrects the charges. want: by this comparison; max: the highest of the last ones. Modules were
 * charged by the card's free memory, and a neighbour may have taken some of that. So the charge of
 * modules is lowered as far as contexts alone explain the count. */
static void correct(int card, uint64_t have, uint64_t want, uint64_t max)
{
	uint32_t contexts = LOAD(&vgpu_my(card)->contexts);
	uint64_t floor = vgpu_context_bytes(card) *
			 (contexts - (contexts && (vgpu_state.other_cards >> card & 1)));

	/* Managed memory is charged in full but may be elsewhere just now: then a low count proves
	 * nothing. */
	if (LOAD(&vgpu_managed_bytes))
		max = UINT64_MAX;
	if (vgpu_state.from_env && most(want, floor) > have)
		vgpu_overhead_raise(card, most(want, floor) - have);
	else if (vgpu_state.from_env && most(max, floor) < have)
		vgpu_overhead_lower(card, have - most(max, floor));
	if (!vgpu_modules_charged(card) || comparisons[card] < COMPARISONS)
		return;
	if (max < floor)
		vgpu_modules_lower(card, floor - max);
	comparisons[card] = 0; /* those were with the charge as it was */
}

/* Compares with the card's own count of this process and corrects the charge. */
static void measure(int card)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	uint32_t begun = LOAD(&slot->mem_begun);
	uint32_t done = LOAD(&slot->mem_done);
	uint64_t told = LOAD(&slot->card[card].mem);
	/* After told: memory that goes in between must not raise the charge. */
	uint64_t uncounted = vgpu_shared_uncounted(card), real, have, want;

	told -= uncounted < told ? uncounted : told;
	/* Comparable only when nothing was being allocated or freed meanwhile. */
	if (begun != done || !vgpu_overhead_counted(card, &real))
		return;
	if (begun != LOAD(&slot->mem_begun))
		return;
	have = vgpu_overhead_charged(card);
	want = real + have > told ? real + have - told : 0;
	correct(card, have, want, highest(card, want));
}

void vgpu_overhead_tick(uint64_t now)
{
	static uint64_t next, compared_modules[VGPU_MAX_CARDS];
	static unsigned looks[VGPU_MAX_CARDS];

	if (next == 0)
		next = now + FIRST_MEASURE_NS;
	if (now < next)
		return;
	next = now + MEASURE_NS;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		uint64_t charged = vgpu_modules_charged((int)i);

		if (!LOAD(&vgpu_my((int)i)->contexts) || !vgpu_limit((int)i))
			continue;
		/* With gresd, once after each change of what modules are charged. */
		if (charged != compared_modules[i])
			looks[i] = 0;
		compared_modules[i] = charged;
		if (vgpu_state.from_env ||
		    (charged >= VGPU_CONTEXT_GROWTH && looks[i]++ < COMPARISONS))
			measure((int)i);
	}
}
