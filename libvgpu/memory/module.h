/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - code and its variables. */
#ifndef VGPU_MEMORY_MODULE_H
#define VGPU_MEMORY_MODULE_H

#include <stdbool.h>
#include <stdint.h>

/* What is charged for modules. */
uint64_t vgpu_modules_charged(int card);
/* Lowers the charge by at most bytes. */
void vgpu_modules_lower(int card, uint64_t bytes);
/* What ended with a context. */
void vgpu_modules_ended(uint64_t owner);
void vgpu_modules_in_child(void);

/* Which handles have been used before (first_use.c).
 * A call for a handle (and a name in it, or NULL) in the current context;
 * 0: there is no context. To be asked for before the call is made. */
uint64_t vgpu_use_key(const char *call, const void *handle, const char *name);
/* That call was made before, went well and was noted; lossy. No locks. */
bool vgpu_used(uint64_t key);
void vgpu_use_note(uint64_t key);
/* Handles or contexts have gone: others may get their addresses. After they have. */
void vgpu_uses_forget(void);

#endif
