/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - the driver's libraries, and the functions of hooks.def by number: for start/entry.c,
 * which has a hook for some.
 */
#ifndef VGPU_DRIVER_LOAD_H
#define VGPU_DRIVER_LOAD_H

#include "real.h"

enum { VGPU_SYMBOLS = sizeof(struct vgpu_real) / sizeof(void *) };
extern const char *const vgpu_symbol_name[VGPU_SYMBOLS];

static inline void **vgpu_real_at(unsigned sym)
{
	return (void **)&vgpu_real + sym;
}

struct vgpu_library {
	const char *soname, *prefix;
	void *handle;
	uintptr_t low; /* where its code begins; with size: */
	size_t size;
	int loaded; /* set last */
};
extern struct vgpu_library vgpu_cuda, vgpu_nvml;
bool vgpu_symbol_of(const struct vgpu_library *lib, unsigned sym);

/* mode: RTLD_NOLOAD takes the library only if somebody else has loaded it. It stays from
 * then on, however often its users close it: the table points into it. False: there is none,
 * or this thread is just loading it. */
bool vgpu_need(struct vgpu_library *lib, int mode);
/* The address is in one of them: its functions have hooks. Until somebody asks for one that has, its
 * library is not known. */
bool vgpu_is_of_driver(const void *address);
/* Returns function, unless it is in a second copy of the library. Then it returns the function of that name
 * in the first copy, or NULL: the copies do not know each other's handles, and the hooks call the first.
 * The first copy itself gets function: it may be a wrapper that opens the real driver. */
void *vgpu_of_first_copy(const struct vgpu_library *lib, const char *name, void *function,
			 const void *caller);
/* This thread is: the library's constructors may call dlsym. */
bool vgpu_loading(void);

#endif
