/* SPDX-License-Identifier: Apache-2.0 */
/* managed.h - managed memory, which the card gives in steps. */
#ifndef VGPU_MEMORY_MANAGED_H
#define VGPU_MEMORY_MANAGED_H

#include <stdint.h>

/* Gives back so many bytes, and the steps that they were in. */
void vgpu_managed_less(int card, uint64_t size);

#endif
