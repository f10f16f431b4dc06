/* SPDX-License-Identifier: Apache-2.0 */
/* lifetimes.h - how much memory the allocations of a graph hold at once, at most. */
#ifndef VGPU_MEMORY_LIFETIMES_H
#define VGPU_MEMORY_LIFETIMES_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_NEVER UINT32_MAX

/* Node to waits for node from. */
struct vgpu_edge {
	uint32_t from, to;
};

/* An allocation: the node that makes it, and the one that frees it, or VGPU_NEVER. */
struct vgpu_life {
	uint32_t born, freed;
	uint64_t bytes;
};

/* At least what is held at once, whatever runs beside what: two allocations can have the same
 * memory only where one is freed before the other is made by the order of the graph. No more
 * than the sum; the sum where it would take too long to say, or there is no memory. */
uint64_t vgpu_held_at_once(const struct vgpu_life *life, size_t lives, const struct vgpu_edge *edge,
			   size_t edges, size_t nodes);

#endif
