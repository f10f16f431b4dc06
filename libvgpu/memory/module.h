/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - code and its variables. */
#ifndef VGPU_MEMORY_MODULE_H
#define VGPU_MEMORY_MODULE_H

#include <stdint.h>

/* What is charged for modules. */
uint64_t vgpu_modules_charged(int card);
/* Lowers the charge by at most bytes. */
void vgpu_modules_lower(int card, uint64_t bytes);
/* What ended with a context. */
void vgpu_modules_ended(uint64_t owner);

#endif
