/* SPDX-License-Identifier: Apache-2.0 */
/* array.h - CUDA arrays. */
#ifndef VGPU_MEMORY_ARRAY_H
#define VGPU_MEMORY_ARRAY_H

#include <stdint.h>

/* What ended with a context. */
void vgpu_arrays_ended(uint64_t owner);

#endif
