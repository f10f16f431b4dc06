/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h - dlsym, dlvsym, dlopen and dlmopen as this library exports them. */
#ifndef VGPU_START_LOADER_H
#define VGPU_START_LOADER_H

/* This library exports them as dlsym, dlvsym, dlopen and dlmopen. */
void *vgpu_dlsym(void *handle, const char *name);
void *vgpu_dlvsym(void *handle, const char *name, const char *version);
void *vgpu_own_dlopen(const char *file, int mode);
void *vgpu_own_dlmopen(long ns, const char *file, int mode);
/* Which of them stands for the function that handle leads to; NULL: none. */
void *vgpu_loader_hook(void *handle, const char *name, const char *version);

#endif
