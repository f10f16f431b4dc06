/* SPDX-License-Identifier: Apache-2.0 */
/* region_peak.c - the most memory that a job has had in use. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

#include "region_ops.h"

/* True for a process of the caller's PID namespace that has ended: it counts
 * against the limit until its memory is surely free, but it uses none. */
static bool has_ended(const struct vgpu_slot *slot, uint64_t own)
{
	uint64_t owner = LOAD(&slot->owner);

	return owner != own && VGPU_OWNER_NS(owner) == VGPU_OWNER_NS(own) &&
	       VGPU_OWNER_NS(own) != VGPU_NS_UNKNOWN &&
	       kill((pid_t)VGPU_OWNER_PID(owner), 0) != 0 && errno == ESRCH;
}

/* A plain sum is enough to know that there is nothing new; only a new height is
 * looked at closely. */
void vgpu_peak_note(struct vgpu_cache *c, const struct vgpu_slot *self, unsigned card, uint64_t sum,
		    int64_t outside)
{
	uint64_t *peak = &c->header->mem_peak[card], own = LOAD(&self->owner), old = LOAD(peak);
	uint32_t count = vgpu_slots_in_use(c);

	if (sum <= old)
		return;
	sum = 0;
	for (uint32_t i = 0; i < count; i++)
		if (!has_ended(&c->slots[i], own) &&
		    __builtin_add_overflow(sum, LOAD(&c->slots[i].card[card].mem), &sum))
			return;
	sum = vgpu_mem_with(sum, outside);
	while (old < sum && !CAS(peak, &old, sum))
		;
}
