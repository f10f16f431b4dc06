/* SPDX-License-Identifier: Apache-2.0 */
/* first_use.h - which handles have been used before. */
#ifndef VGPU_MEMORY_FIRST_USE_H
#define VGPU_MEMORY_FIRST_USE_H

#include <stdbool.h>
#include <stdint.h>

/* A call for a handle (and a name in it, or NULL) in the current context;
 * 0: there is no context. To be asked for before the call is made. */
uint64_t vgpu_use_key(const char *call, const void *handle, const char *name);
/* That call was made before, went well and was noted; lossy. No locks. */
bool vgpu_used(uint64_t key);
void vgpu_use_note(uint64_t key);
/* Handles or contexts have gone: others may get their addresses. After they have. */
void vgpu_uses_forget(void);

#endif
