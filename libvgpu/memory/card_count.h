/* SPDX-License-Identifier: Apache-2.0 */
/* card_count.h - the card's own count of this process. */
#ifndef VGPU_MEMORY_CARD_COUNT_H
#define VGPU_MEMORY_CARD_COUNT_H

#include <stdbool.h>
#include <stdint.h>

/* What the card counts, and what it takes beside. False when the process is not listed: another
 * PID namespace, or no context yet. The first call opens NVML. */
bool vgpu_overhead_counted(int card, uint64_t *bytes);

#endif
