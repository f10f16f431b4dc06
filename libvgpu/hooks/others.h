/* SPDX-License-Identifier: Apache-2.0 */
/* others.h - the hooks of OpenCL, Vulkan and OpenGL by name. */
#ifndef VGPU_HOOKS_OTHERS_H
#define VGPU_HOOKS_OTHERS_H

#include "../driver/others.h"

/* NULL: there is none. */
void *vgpu_others_named(const char *name);
/* The cards on which this process works without CUDA, a bit each. */
uint32_t vgpu_others_cards(void);
/* The host has waited for work, which may have ended. */
void vgpu_others_waited(bool just_now);

#endif
