/* SPDX-License-Identifier: Apache-2.0 */
/* told.h - what a process is told of its memory. */
#ifndef VGPU_MEMORY_TOLD_H
#define VGPU_MEMORY_TOLD_H

#include <stdint.h>

/* Makes free and total of a card, as the driver says them, what the job is told: a
 * card as large as its limit. If there is no limit, or the card is below 0, they stay. */
void vgpu_told(int card, uint64_t *free, uint64_t *total);

#endif
