/* SPDX-License-Identifier: Apache-2.0 */
/*
 * others.h - the functions of OpenCL, Vulkan, OpenGL and OptiX, and how callers get their hooks. libvgpu never
 * loads the libraries of these APIs: a program that calls one of their functions has them.
 */
#ifndef VGPU_DRIVER_OTHERS_H
#define VGPU_DRIVER_OTHERS_H

#include "../base/util.h"
#include "others_abi.h"

/* A member is NULL before VGPU_NEED_API(), and if the library does not have the function. */
struct vgpu_others {
#define HOOK(result, name, params) result(*name) params;
#define USE HOOK
#include "others.def"
};
extern struct vgpu_others vgpu_others;

#define HOOK(result, name, params) VGPU_EXPORT result name params;
#define USE(result, name, params)
#include "others.def"

/* Finds the functions of the API that has this one. If the name of a library is not known, the program
 * must be linked to it. */
void vgpu_find_api_of(const char *function);
/* In a hook: returns absent if the API's own function is not found. */
#define VGPU_NEED_API(name, absent)                     \
	do {                                            \
		if (unlikely(!LOAD(&vgpu_others.name))) \
			vgpu_find_api_of(#name);        \
		if (!vgpu_others.name)                  \
			return absent;                  \
	} while (0)
/* A function that the program got by a function of the API, for no library need export it. */
void vgpu_function_is(const char *name, void *function);
/* A library is loaded of OpenCL, Vulkan or EGL, whose functions have a gate. */
bool vgpu_any_api(void);
/* NULL: there is none of that name. */
void *vgpu_others_named(const char *name);
/* The answer of dlsym; NULL: that of the C library. version may be NULL. */
void *vgpu_others_hook(void *handle, const char *name, const char *version);

#endif
