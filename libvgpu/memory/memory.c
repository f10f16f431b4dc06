/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. */
#include "memory.h"
#include "../job/job.h"
#include "pool.h"

/* Pools and memory of cuMemCreate are the device's and outlive the context. */
void vgpu_memory_ended(int card, CUdevice dev, uint64_t owner)
{
	vgpu_linear_ended(owner);
	vgpu_arrays_ended(owner);
	vgpu_modules_ended(owner);
	vgpu_pools_ended(owner);
	vgpu_graphs_settle(card, dev);
}

void vgpu_memory_tick(uint64_t now)
{
	vgpu_pools_tick(now);
	vgpu_overhead_tick(now);
	for (int i = 0; i < (int)vgpu_state.ncards; i++)
		vgpu_imports_settle(i);
}
