/* SPDX-License-Identifier: Apache-2.0 */
/* compare.h - the charge beside allocations, held against the card's own count. */
#ifndef VGPU_MEMORY_COMPARE_H
#define VGPU_MEMORY_COMPARE_H

#include <stdint.h>

/* The watcher's look. Without gresd it measures all; with it gresd does, and the watcher only
 * what modules were charged. */
void vgpu_overhead_tick(uint64_t now);
void vgpu_compare_in_child(void);

#endif
