/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - what happens to all kinds of memory at once. */
#ifndef VGPU_MEMORY_MEMORY_H
#define VGPU_MEMORY_MEMORY_H

#include "../driver/cuda_abi.h"

/* The driver has taken back what a context of a card held. */
void vgpu_memory_ended(int card, CUdevice dev, uint64_t owner);
/* The watcher's look. */
void vgpu_memory_tick(uint64_t now);
/* After a fork, in the child: what the parent holds, the parent pays. */
void vgpu_memory_in_child(void);

#endif
