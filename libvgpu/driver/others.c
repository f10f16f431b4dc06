/* SPDX-License-Identifier: Apache-2.0 */
/* others.c - see others.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "../base/dl.h"
#include "others.h"

struct vgpu_others vgpu_others;
struct vgpu_api vgpu_opencl = {.library = {{"libOpenCL.so.1", "libOpenCL"}}, .prefix = "cl"};
struct vgpu_api vgpu_vulkan = {.library = {{"libvulkan.so.1", "libvulkan.so"}}, .prefix = "vk"};
struct vgpu_api vgpu_egl = {.library = {{"libEGL.so.1", "libEGL.so"}},
			    .prefix = "eg",
			    .wrapped = true};
/* Each of them leads to the same driver. */
struct vgpu_api vgpu_opengl = {.library = {{"libOpenGL.so.0", "libOpenGL.so"},
					   {"libGLESv2.so.2", "libGLESv2.so"},
					   {"libGL.so.1", "libGL.so"}},
			       .prefix = "gl",
			       .wrapped = true};

struct vgpu_api vgpu_optix = {.library = {{"libnvoptix.so.1", "libnvoptix"}}, .prefix = "op"};

static const char *const names[] = {
#define CL(name, params) #name,
#define VK(result, name, params) #name,
#define GL VK
#define CL_USE CL
#define VK_USE VK
#define GL_USE VK
#include "others.def"
};
#define NAMES (sizeof names / sizeof *names)
_Static_assert(sizeof(struct vgpu_others) == NAMES * sizeof(void *), "table of functions");

static bool is_of(const struct vgpu_api *api, const char *path)
{
	for (unsigned i = 0; path && i < VGPU_API_LIBRARIES && api->library[i].begins; i++)
		if (strncmp(vgpu_base_of(path), api->library[i].begins,
			    strlen(api->library[i].begins)) == 0)
			return true;
	return false;
}

struct search {
	const struct vgpu_api *api;
	uintptr_t inside; /* 0: anywhere */
	char path[4096];
};

static int look_at(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;
	uintptr_t low = vgpu_extent(info, &size);

	return is_of(s->api, info->dlpi_name) && (!s->inside || s->inside - low < size) &&
	       snprintf(s->path, sizeof s->path, "%s", info->dlpi_name) < (int)sizeof s->path;
}

/* A copy that a program brings along has a name of its own, and its functions may be visible to
 * one library alone. It stays from now on, however often its users close it. */
#define LOADED (RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE)
static void *loaded(const struct vgpu_api *api, const char *soname)
{
	void *handle = vgpu_dlopen(soname, LOADED);
	struct search s = {.api = api};

	if (!handle && dl_iterate_phdr(look_at, &s))
		handle = vgpu_dlopen(s.path, LOADED);
	return handle;
}

static void find_in(const struct vgpu_api *api, void *handle)
{
	void **table = (void **)&vgpu_others, *found;

	for (unsigned i = 0; i < NAMES; i++) {
		if (strncmp(names[i], api->prefix, 2) != 0)
			continue;
		found = vgpu_real_dlsym(handle && !api->wrapped ? handle : RTLD_NEXT, names[i]);
		if (!found && handle && api->wrapped)
			found = vgpu_real_dlsym(handle, names[i]);
		if (found)
			__atomic_store_n(&table[i], found, __ATOMIC_RELAXED);
	}
}

/* Threads that come here at the same time find the same. */
void vgpu_find_api(struct vgpu_api *api)
{
	void *handle;

	vgpu_need_dlsym();
	if (!vgpu_real_dlsym)
		return;
	for (unsigned i = 0; i < VGPU_API_LIBRARIES && api->library[i].soname; i++) {
		handle = loaded(api, api->library[i].soname);
		find_in(api, handle);
		if (handle)
			__atomic_store_n(&api->found, true, __ATOMIC_RELEASE);
	}
}

void vgpu_function_is(const char *name, void *function)
{
	void **table = (void **)&vgpu_others, *none = NULL;

	for (unsigned i = 0; i < NAMES; i++)
		if (strcmp(names[i], name) == 0)
			__atomic_compare_exchange_n(&table[i], &none, function, false,
						    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static bool is_exported(const struct vgpu_api *api, const char *name, const void *address)
{
	for (unsigned i = 0; i < VGPU_API_LIBRARIES && api->library[i].soname; i++) {
		void *handle = vgpu_dlopen(api->library[i].soname, LOADED);

		if (handle && vgpu_real_dlsym(handle, name) == address)
			return true;
	}
	return false;
}

/* The hook's own answer is of such a library, too: not of a wrapper, or of what a browser brings along
 * to draw by the system's. */
static bool is_driver(struct vgpu_api *api, const char *name, const void *address)
{
	void **table = (void **)&vgpu_others;

	unsigned i = 0;

	while (i < NAMES && strcmp(names[i], name) != 0)
		i++;
	if (i == NAMES || !is_exported(api, name, address))
		return false;
	if (!__atomic_load_n(&table[i], __ATOMIC_RELAXED))
		vgpu_find_api(api);
	return is_exported(api, name, __atomic_load_n(&table[i], __ATOMIC_RELAXED));
}

bool vgpu_is_of_api(struct vgpu_api *api, const char *name, const void *address)
{
	struct search s = {.api = api, .inside = (uintptr_t)address};

	return api->wrapped ? is_driver(api, name, address) : dl_iterate_phdr(look_at, &s);
}

bool vgpu_any_api(void)
{
	struct search cl = {.api = &vgpu_opencl}, vk = {.api = &vgpu_vulkan};
	struct search egl = {.api = &vgpu_egl};

	return dl_iterate_phdr(look_at, &cl) || dl_iterate_phdr(look_at, &vk) ||
	       dl_iterate_phdr(look_at, &egl);
}
