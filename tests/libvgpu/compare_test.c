/* SPDX-License-Identifier: Apache-2.0 */
/* compare_test.c - the charge of contexts follows the card's count. Memory that the card counts for no
 * process does not lower it. */
#include "../../libvgpu/memory/compare.c"

#include "check.h"

#define MIB (1ull << 20)
#define CONTEXT (544 * MIB)

struct vgpu_state vgpu_state;
uint64_t vgpu_managed_bytes;

static struct vgpu_slot slot;
static uint64_t counted, kept, contexts;

bool vgpu_overhead_counted(int card, uint64_t *bytes)
{
	CHECK_EQ(card, 0);
	*bytes = counted;
	return true;
}

uint64_t vgpu_overhead_charged(int card)
{
	CHECK_EQ(card, 0);
	return contexts;
}

void vgpu_overhead_raise(int card, uint64_t bytes)
{
	contexts += bytes;
	slot.card[card].mem += bytes;
}

void vgpu_overhead_lower(int card, uint64_t bytes)
{
	contexts -= bytes;
	slot.card[card].mem -= bytes;
}

uint64_t vgpu_shared_uncounted(int card)
{
	CHECK_EQ(card, 0);
	return kept;
}

uint64_t vgpu_context_bytes(int card)
{
	return card == 0 ? CONTEXT : 0;
}

uint64_t vgpu_modules_charged(int card)
{
	return (uint64_t)card;
}

void vgpu_modules_lower(int card, uint64_t bytes)
{
	CHECK_EQ(card, (int)bytes);
}

uint64_t vgpu_limit(int card)
{
	return card == 0 ? 16384 * MIB : 0;
}

static void compares(void)
{
	static uint64_t now = 1;

	for (int i = 0; i < 2 * COMPARISONS; i++)
		vgpu_overhead_tick(now += 2 * (uint64_t)FIRST_MEASURE_NS);
}

int main(void)
{
	vgpu_state = (struct vgpu_state){.slot = &slot,
					 .ncards = 1,
					 .from_env = true,
					 .other_cards = ~1u};
	slot.card[0].contexts = 1;
	slot.card[0].mem = contexts = CONTEXT;
	slot.card[0].mem += 1024 * MIB;

	counted = 2024 * MIB;
	compares();
	CHECK_EQ(contexts, 1000 * MIB);

	/* The allocation is freed, and a descriptor keeps it. */
	kept = 1024 * MIB;
	counted = 1000 * MIB;
	compares();
	CHECK_EQ(contexts, 1000 * MIB);

	/* The descriptor is closed. */
	kept = 0;
	slot.card[0].mem -= 1024 * MIB;
	compares();
	CHECK_EQ(contexts, 1000 * MIB);

	counted = 700 * MIB;
	compares();
	CHECK_EQ(contexts, 700 * MIB);
	return done("compare");
}
