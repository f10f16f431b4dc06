/* SPDX-License-Identifier: Apache-2.0 */
/* managed.c - see managed.h. Charged in full: any page may come to the card. */
#include <errno.h>

#include "../region.h"
#include "account.h"
#include "managed.h"

/* The card gives managed memory in steps of this many bytes, and one step more for
 * its bookkeeping: a process that holds n bytes takes n / step + 1 steps (measured
 * on an H200, driver 580, for 1 MiB to 3.5 GiB). */
#define MANAGED_STEP (128ull << 20)

static struct {
	uint64_t live, charged;
} managed[VGPU_MAX_CARDS];

static uint64_t managed_bytes(uint64_t live)
{
	return live ? (live / MANAGED_STEP + 1) * MANAGED_STEP : 0;
}

void vgpu_managed_less(int card, uint64_t size)
{
	uint64_t live = __atomic_sub_fetch(&managed[card].live, size, __ATOMIC_SEQ_CST);

	__atomic_sub_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	vgpu_charge_down_to(card, &managed[card].charged, managed_bytes(live), &managed[card].live,
			    managed_bytes);
}

int vgpu_managed_more(int card, uint64_t size)
{
	uint64_t live;

	if (vgpu_absurd(size))
		return -ENOMEM;
	__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	live = __atomic_add_fetch(&managed[card].live, size, __ATOMIC_SEQ_CST);
	if (vgpu_charge_up_to(card, &managed[card].charged, managed_bytes(live)) == 0)
		return 0;
	vgpu_managed_less(card, size);
	return -ENOMEM;
}
