/* SPDX-License-Identifier: Apache-2.0 */
/* take.h - the first step of an allocation. */
#ifndef VGPU_MEMORY_TAKE_H
#define VGPU_MEMORY_TAKE_H

#include <stdint.h>

/* Announces the bytes before the driver is asked: 0, or -ENOMEM when they do not fit. After the
 * driver's answer vgpu_mem_done() follows. */
int vgpu_mem_take(int card, uint64_t bytes);

#endif
