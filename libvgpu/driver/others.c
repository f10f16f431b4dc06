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

static const struct function {
	const char *name;
	void **real, *hook; /* NULL: it has no hook */
} functions[] = {
#define HOOK(result, name, params) {#name, (void **)&vgpu_others.name, (void *)name},
#define USE(result, name, params) {#name, (void **)&vgpu_others.name, NULL},
#include "others.def"
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

#define LIBRARIES 3
struct api {
	/* These have its functions: the name of each, and what other names of it begin with. */
	struct {
		const char *soname, *begins;
	} library[LIBRARIES];
	bool wrapped; /* other libraries have functions of these names, preloads among them */
};
static const struct api opencl = {{{"libOpenCL.so.1", "libOpenCL"}}, false},
			vulkan = {{{"libvulkan.so.1", "libvulkan.so"}}, false},
			optix = {{{"libnvoptix.so.1", "libnvoptix"}}, false},
			egl = {{{"libEGL.so.1", "libEGL.so"}}, true},
			opengl = {{{"libOpenGL.so.0", "libOpenGL.so"}, /* all lead to one driver */
				   {"libGLESv2.so.2", "libGLESv2.so"},
				   {"libGL.so.1", "libGL.so"}},
				  true};

static const struct api *api_of(const char *function)
{
	switch (*function) {
	case 'c':
		return &opencl;
	case 'v':
		return &vulkan;
	case 'o':
		return &optix;
	}
	return *function == 'e' ? &egl : &opengl;
}

/* NULL: there is none. */
static const struct function *named(const char *name)
{
	for (unsigned i = 0; name && i < FUNCTIONS; i++)
		if (strcmp(functions[i].name, name) == 0)
			return &functions[i];
	return NULL;
}

void *vgpu_others_named(const char *name)
{
	const struct function *f = named(name);

	return f ? f->hook : NULL;
}

/* ------------------------------------------------------------------------- libraries */
static bool is_of(const struct api *api, const char *path)
{
	for (unsigned i = 0; path && i < LIBRARIES && api->library[i].begins; i++)
		if (strncmp(vgpu_base_of(path), api->library[i].begins,
			    strlen(api->library[i].begins)) == 0)
			return true;
	return false;
}

struct search {
	const struct api *api;
	char path[4096];
};

static int look_at(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;

	(void)size;
	return is_of(s->api, info->dlpi_name) &&
	       snprintf(s->path, sizeof s->path, "%s", info->dlpi_name) < (int)sizeof s->path;
}

bool vgpu_any_api(void)
{
	struct search cl = {.api = &opencl}, vk = {.api = &vulkan}, e = {.api = &egl};

	return dl_iterate_phdr(look_at, &cl) || dl_iterate_phdr(look_at, &vk) ||
	       dl_iterate_phdr(look_at, &e);
}

/* The library stays from now on, however often its users close it. */
#define LOADED (RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE)

/* A copy that a program brings along has a name of its own, and its functions may be visible to
 * one library alone. */
static void *loaded(const struct api *api, const char *soname)
{
	void *handle = vgpu_dlopen(soname, LOADED);
	struct search s = {.api = api};

	if (!handle && dl_iterate_phdr(look_at, &s))
		handle = vgpu_dlopen(s.path, LOADED);
	return handle;
}

static void find_in(const struct api *api, void *handle)
{
	for (unsigned i = 0; i < FUNCTIONS; i++) {
		const char *name = functions[i].name;
		void *found;

		if (api_of(name) != api)
			continue;
		found = vgpu_real_dlsym(handle && !api->wrapped ? handle : RTLD_NEXT, name);
		if (!found && handle && api->wrapped)
			found = vgpu_real_dlsym(handle, name);
		if (found)
			STORE(functions[i].real, found);
	}
}

/* Threads that come here at the same time find the same. */
void vgpu_find_api_of(const char *function)
{
	const struct api *api = api_of(function);

	vgpu_need_dlsym();
	for (unsigned i = 0; vgpu_real_dlsym && i < LIBRARIES && api->library[i].soname; i++)
		find_in(api, loaded(api, api->library[i].soname));
}

void vgpu_function_is(const char *name, void *function)
{
	const struct function *f = named(name);
	void *none = NULL;

	if (f)
		CAS(f->real, &none, function);
}

/* ----------------------------------------------------------------------------- dlsym */
static bool is_exported(const struct api *api, const char *name, const void *address)
{
	for (unsigned i = 0; i < LIBRARIES && api->library[i].soname; i++) {
		void *handle = vgpu_dlopen(api->library[i].soname, LOADED);

		if (handle && vgpu_real_dlsym(handle, name) == address)
			return true;
	}
	return false;
}

/* The address is in a library of the function's API. May set dlerror. */
static bool is_of_api(const struct function *f, const void *address)
{
	const struct api *api = api_of(f->name);
	int (*info_of)(const void *, Dl_info *);
	Dl_info info;

	if (!api->wrapped) {
		info_of = (int (*)(const void *, Dl_info *))vgpu_of_libc("dladdr");
		return info_of && info_of(address, &info) && is_of(api, info.dli_fname);
	}
	/* The hook's own answer is of such a library, too: not of a wrapper, or of what a browser
	 * brings along to draw by the system's. */
	if (!is_exported(api, f->name, address))
		return false;
	if (!LOAD(f->real))
		vgpu_find_api_of(f->name);
	return is_exported(api, f->name, LOAD(f->real));
}

/* A hook replaces a function only if a library of the API has it. If only this library exports the
 * function, the result is an error, and dlerror reports it. The C library resolves RTLD_NEXT, because
 * the caller may be a preloaded library of the user that this library has just called. */
void *vgpu_others_hook(void *handle, const char *name, const char *version)
{
	const struct function *f = named(name);
	void *found;

	if (!f || !f->hook)
		return NULL;
	if (handle == RTLD_NEXT)
		return vgpu_real_dlsym(RTLD_NEXT, name) ? NULL : VGPU_NOTHING;
	found = version ? vgpu_real_dlvsym(handle, name, version) : vgpu_real_dlsym(handle, name);
	if (found == f->hook)
		return vgpu_real_dlsym(RTLD_NEXT, name) ? f->hook : VGPU_NOTHING;
	if (!found || !is_of_api(f, found))
		return NULL;
	vgpu_real_dlsym(handle, name); /* no error */
	return f->hook;
}
