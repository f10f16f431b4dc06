/* SPDX-License-Identifier: Apache-2.0 */
/* others.h - how callers get the hooks of OpenCL, Vulkan and OpenGL by dlsym. */
#ifndef VGPU_START_OTHERS_H
#define VGPU_START_OTHERS_H

/* What dlsym is to answer; NULL: what the C library does. version may be NULL. */
void *vgpu_others_hook(void *handle, const char *name, const char *version);

#endif
