/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - see load.h and real.h. The libraries are loaded when a caller first asks for a CUDA or NVML
 * name, and never before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "../base/dl.h"
#include "load.h"

struct vgpu_real vgpu_real;
int (*vgpu_transport)(int fd, unsigned long req, void *arg);

const char *const vgpu_symbol_name[VGPU_SYMBOLS] = {
#define CU(name, params) #name,
#include "hooks.def"
};

/* ------------------------------------------------------------- the libraries */
struct vgpu_library vgpu_cuda = {.soname = "libcuda.so.1", .prefix = "cu"};
struct vgpu_library vgpu_nvml = {.soname = "libnvidia-ml.so.1", .prefix = "nvml"};
static __thread bool loading; /* the library's constructors may call dlsym */

bool vgpu_symbol_of(const struct vgpu_library *lib, unsigned sym)
{
	return strncmp(vgpu_symbol_name[sym], lib->prefix, strlen(lib->prefix)) == 0;
}

/* ------------------------------------------------------------------ whose call it is */
/* The address in lib->low becomes the begin of the object that it is in. */
static int find_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct vgpu_library *lib = arg;
	uintptr_t low = vgpu_extent(info, &size);

	if (lib->low - low >= size)
		return 0;
	lib->low = low;
	lib->size = size;
	return 1;
}

static bool is_in(const struct vgpu_library *lib, const void *address)
{
	size_t size = LOAD(&lib->size);

	return (uintptr_t)address - LOAD(&lib->low) < size;
}

bool vgpu_is_of_driver(const void *address)
{
	return is_in(&vgpu_cuda, address) || is_in(&vgpu_nvml, address);
}

/* ---------------------------------------------------------- a second copy of a library */
static const char *soname_of(const struct dl_phdr_info *info)
{
	const ElfW(Dyn) *d = NULL;
	uintptr_t strings = 0, at = 0;

	for (int i = 0; i < info->dlpi_phnum && !d; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; d && d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_STRTAB)
			strings = d->d_un.d_ptr;
		else if (d->d_tag == DT_SONAME)
			at = d->d_un.d_val;
	}
	if (strings < info->dlpi_addr) /* not relocated, as in the kernel's vDSO */
		strings += info->dlpi_addr;
	return at ? (const char *)(strings + at) : "";
}

struct copy_search {
	const char *soname;
	uintptr_t function, caller, first;
	size_t size; /* of the first copy */
	bool found;
};

static int find_copy(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct copy_search *s = arg;
	uintptr_t low = vgpu_extent(info, &size);

	if (strcmp(soname_of(info), s->soname) != 0)
		return 0;
	if (!s->size) {
		s->first = low;
		s->size = size;
	}
	s->found = s->function - low < size && low != s->first && s->caller - s->first >= s->size;
	return s->function - low < size;
}

void *vgpu_of_first_copy(const struct vgpu_library *lib, const char *name, void *function,
			 const void *caller)
{
	struct copy_search s = {lib->soname,     (uintptr_t)function, (uintptr_t)caller,
				LOAD(&lib->low), LOAD(&lib->size),    false};
	void *handle;

	if (!function || is_in(lib, function))
		return function;
	dl_iterate_phdr(find_copy, &s);
	if (!s.found)
		return function;
	handle = vgpu_dlopen(lib->soname, RTLD_LAZY | RTLD_NOLOAD);
	return handle ? vgpu_real_dlsym(handle, name) : NULL;
}

/* dlsym takes the linker's lock. A thread that runs the constructors of a library has that lock, and may
 * come here. So this takes no lock of the library. All threads find the same. */
static void resolve(struct vgpu_library *lib, void *handle)
{
	void *transport, *found;
	struct vgpu_library at = {.low = 0};

	for (unsigned i = 0; i < VGPU_SYMBOLS; i++) {
		if (!vgpu_symbol_of(lib, i))
			continue;
		found = vgpu_real_dlsym(handle, vgpu_symbol_name[i]);
		STORE(vgpu_real_at(i), found);
		if (!at.low)
			at.low = (uintptr_t)found;
	}
	/* Only a simulated driver has this: it answers ioctls in user space. */
	transport = lib == &vgpu_cuda ? vgpu_real_dlsym(handle, "vgpu_rm_transport") : NULL;
	if (transport)
		STORE((void **)&vgpu_transport, transport);
	dl_iterate_phdr(find_object, &at);
	STORE(&lib->low, at.low);
	STORE(&lib->size, at.size);
	STORE(&lib->handle, handle);
	STORE(&lib->loaded, 1);
}

bool vgpu_need(struct vgpu_library *lib, int mode)
{
	void *handle;

	if (likely(__atomic_load_n(&lib->loaded, __ATOMIC_ACQUIRE)))
		return true;
	if (loading)
		return false;
	loading = true;
	handle = vgpu_dlopen(lib->soname, RTLD_LAZY | RTLD_NODELETE | mode);
	if (handle) {
		vgpu_attach();
		resolve(lib, handle);
	}
	loading = false;
	return lib->loaded;
}

bool vgpu_loading(void)
{
	return loading;
}

void vgpu_real_in_child(void)
{
	vgpu_cuda.loaded = 0;
	loading = false;
}

void vgpu_need_cuda(void)
{
	vgpu_need(&vgpu_cuda, 0);
}

void vgpu_need_nvml(void)
{
	vgpu_need(&vgpu_nvml, 0);
}
