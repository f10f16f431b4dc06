/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dl.h - the C library's own dlopen, dlmopen, dlsym and dlvsym: this library exports
 * functions of these names.
 */
#ifndef VGPU_BASE_DL_H
#define VGPU_BASE_DL_H

#include "util.h"

/* NULL until vgpu_need_dlsym, and where the program has none (glibc before 2.34, without
 * libdl). */
extern void *(*vgpu_real_dlsym)(void *handle, const char *name);
extern void *(*vgpu_real_dlvsym)(void *handle, const char *name, const char *version);
void vgpu_need_dlsym(void);
/* A function of the C library, whatever preload has one of the name before it; NULL: none. */
void *vgpu_of_libc(const char *name);
/* For dlsym to return NULL, where NULL leaves the answer to the C library. */
#define VGPU_NOTHING ((void *)-1)
/* NULL until vgpu_need_dlopen; another preload's that comes after this one, if there is one. */
extern void *(*vgpu_real_dlopen)(const char *file, int mode);
extern void *(*vgpu_real_dlmopen)(long ns, const char *file, int mode);
void vgpu_need_dlopen(void);
void *vgpu_dlopen(const char *file, int mode);

/* Where a loaded object begins, and its size. */
struct dl_phdr_info;
uintptr_t vgpu_extent(const struct dl_phdr_info *info, size_t *size);

/* For callers to whom functions of the C library may not be ready. */
VGPU_EARLY static inline bool vgpu_same(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

VGPU_EARLY static inline const char *vgpu_base_of(const char *path)
{
	const char *base = path;

	for (; *path; path++)
		if (*path == '/')
			base = path + 1;
	return base;
}

#endif
