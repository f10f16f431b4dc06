/* SPDX-License-Identifier: Apache-2.0 */
/* others.c - see others.h. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "../base/dl.h"
#include "../hooks/others.h"
#include "loader.h"
#include "others.h"

static struct vgpu_api *api_of(char first)
{
	return first == 'c'   ? &vgpu_opencl
	       : first == 'v' ? &vgpu_vulkan
	       : first == 'e' ? &vgpu_egl
	       : first == 'o' ? &vgpu_optix
			      : &vgpu_opengl;
}

/* Only where the question leads to a library of the API. What this library exports is no answer where
 * nobody else has it; that question sets dlerror. For RTLD_NEXT the C library answers: the caller
 * may be a preload of the user's that this library has just called. */
void *vgpu_others_hook(void *handle, const char *name, const char *version)
{
	void *hook = vgpu_others_named(name), *found;

	if (!hook)
		return NULL;
	if (handle == RTLD_NEXT)
		return vgpu_real_dlsym(RTLD_NEXT, name) ? NULL : VGPU_NOTHING;
	found = version ? vgpu_real_dlvsym(handle, name, version) : vgpu_real_dlsym(handle, name);
	if (found == hook)
		return vgpu_real_dlsym(RTLD_NEXT, name) ? hook : VGPU_NOTHING;
	if (!found || !vgpu_is_of_api(api_of(name[0]), name, found))
		return NULL;
	vgpu_real_dlsym(handle, name); /* no error */
	return hook;
}
