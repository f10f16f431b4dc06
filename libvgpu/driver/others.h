/* SPDX-License-Identifier: Apache-2.0 */
/*
 * others.h - the functions of OpenCL, Vulkan, OpenGL and OptiX by number. Their libraries are never loaded from
 * here: who calls a function of theirs has them.
 */
#ifndef VGPU_DRIVER_OTHERS_H
#define VGPU_DRIVER_OTHERS_H

#include "../base/util.h"
#include "opencl_abi.h"
#include "opengl_abi.h"
#include "vulkan_abi.h"

/* A member is NULL until vgpu_need_api(), and where the library does not have it. */
struct vgpu_others {
#define CL(name, params) cl_int(*name) params;
#define VK(result, name, params) result(*name) params;
#define GL VK
#define CL_USE CL
#define VK_USE VK
#define GL_USE VK
#include "others.def"
#undef CL
#undef VK
};
extern struct vgpu_others vgpu_others;

#define CL(name, params) VGPU_EXPORT cl_int name params;
#define VK(result, name, params) VGPU_EXPORT result name params;
#undef CL_USE
#undef VK_USE
#undef GL_USE
#define CL_USE(name, params)
#define VK_USE(result, name, params)
#define GL_USE VK_USE
#include "others.def"
#undef CL
#undef VK
#undef GL
#undef CL_USE
#undef VK_USE
#undef GL_USE

#define VGPU_API_LIBRARIES 3
struct vgpu_api {
	/* That have its functions: the name of each, and what other names of it begin with. */
	struct {
		const char *soname, *begins;
	} library[VGPU_API_LIBRARIES];
	const char *prefix; /* of its functions */
	bool wrapped;       /* other libraries have functions of these names, preloads among them */
	bool found;
};
extern struct vgpu_api vgpu_opencl, vgpu_vulkan, vgpu_egl, vgpu_opengl, vgpu_optix;

/* Finds the library's functions, once. A library whose name says nothing has them if the program is
 * linked to it. */
void vgpu_find_api(struct vgpu_api *api);
static inline void vgpu_need_api(struct vgpu_api *api)
{
	if (unlikely(!__atomic_load_n(&api->found, __ATOMIC_ACQUIRE)))
		vgpu_find_api(api);
}
/* A function that no library need export, from who has asked for it. */
void vgpu_function_is(const char *name, void *function);
/* The address, of a function of that name, is in a library of the API. May set dlerror. */
bool vgpu_is_of_api(struct vgpu_api *api, const char *name, const void *address);
/* A library of one of them is loaded whose functions have a gate. */
bool vgpu_any_api(void);

#endif
