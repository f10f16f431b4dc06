/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - see compare.h. */
#include "compare.h"
#include "../job/job.h"
#include "account.h"
#include "card_count.h"
#include "context_cost.h"
#include "module.h"
#include "objects.h"
#include "shared.h"

#define MEASURE_NS 250000000u
/* Short programs never pay for opening NVML. */
#define FIRST_MEASURE_NS 1000000000u

/* The card's count may lag behind what has just been allocated: it lowers the
 * charge only to the highest of so many comparisons. */
#define COMPARISONS 4

static uint64_t compared[VGPU_MAX_CARDS][COMPARISONS];
static unsigned comparisons[VGPU_MAX_CARDS];
/* Of the comparisons. Never held over a call of NVML: to open it takes the linker's lock, and a
 * thread that has that lock may come here from a constructor. */
static pthread_mutex_t measure_lock = PTHREAD_MUTEX_INITIALIZER;

/* Notes one comparison. Returns the highest of the last ones, or UINT64_MAX
 * while there are too few. */
static uint64_t highest(int card, uint64_t want)
{
	uint64_t max = 0;

	compared[card][comparisons[card]++ % COMPARISONS] = want;
	if (comparisons[card] < COMPARISONS)
		return UINT64_MAX;
	for (int i = 0; i < COMPARISONS; i++)
		if (compared[card][i] > max)
			max = compared[card][i];
	return max;
}

/* Brings the overhead charge to what was compared. */
static void correct(int card, uint64_t have, uint64_t want, uint64_t max)
{
	if (want > have) {
		vgpu_overhead_raise(card, want - have);
	} else if (max < have && __atomic_load_n(&vgpu_managed_bytes, __ATOMIC_RELAXED) == 0) {
		/* Managed memory is charged in full but may be elsewhere just
		 * now: then a low count proves nothing. */
		vgpu_overhead_lower(card, have - max);
	}
}

/* Modules were charged by the card's free memory, which a neighbour may have taken:
 * what contexts alone do not explain goes. */
static void correct_modules(int card, uint64_t floor, uint64_t max)
{
	if (max < floor && __atomic_load_n(&vgpu_managed_bytes, __ATOMIC_RELAXED) == 0)
		vgpu_modules_lower(card, floor - max);
	comparisons[card] = 0; /* those were with the charge as it was */
}

/* Compares with the card's own count of this process and corrects the charge. */
static void measure(int card)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	uint32_t begun, done, contexts;
	uint64_t real, told, uncounted, have, want, max, floor;

	begun = __atomic_load_n(&slot->mem_begun, __ATOMIC_SEQ_CST);
	done = __atomic_load_n(&slot->mem_done, __ATOMIC_SEQ_CST);
	told = __atomic_load_n(&slot->card[card].mem, __ATOMIC_SEQ_CST);
	/* After told: memory that goes in between must not raise the charge. */
	uncounted = vgpu_shared_uncounted(card);
	told -= uncounted < told ? uncounted : told;
	/* Comparable only when nothing was being allocated or freed meanwhile. */
	if (begun != done || !vgpu_overhead_counted(card, &real))
		return;
	pthread_mutex_lock(&measure_lock);
	if (begun == __atomic_load_n(&slot->mem_begun, __ATOMIC_SEQ_CST)) {
		have = vgpu_overhead_charged(card);
		want = real + have > told ? real + have - told : 0;
		contexts = __atomic_load_n(&slot->card[card].contexts, __ATOMIC_RELAXED);
		contexts -= contexts && vgpu_others_on(card);
		floor = vgpu_context_bytes(card) * contexts;
		max = highest(card, want);
		if (vgpu_state.from_env)
			correct(card, have, want < floor ? floor : want, max < floor ? floor : max);
		if (vgpu_modules_charged(card) && max != UINT64_MAX)
			correct_modules(card, floor, max);
	}
	pthread_mutex_unlock(&measure_lock);
}

void vgpu_compare_in_child(void)
{
	pthread_mutex_init(&measure_lock, NULL); /* the parent's watcher may have held it */
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

		if (!__atomic_load_n(&vgpu_my((int)i)->contexts, __ATOMIC_RELAXED) ||
		    !vgpu_limit((int)i))
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
