/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - see load.h and real.h. The libraries are loaded when a caller first asks for a CUDA or NVML
 * name, and never before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "../base/dl.h"
#include "load.h"

struct vgpu_real vgpu_real;
int (*vgpu_transport)(int fd, unsigned long req, void *arg);

const char *const vgpu_symbol_name[VGPU_SYMBOLS] = {
#define CU(name, params) #name,
#include "hooks.def"
};

/* ----------------------------------------------------------- sorted indexes */
static unsigned short by_name[VGPU_SYMBOLS], by_pointer[VGPU_SYMBOLS];
static unsigned pointers; /* entries of by_pointer */
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static int is_named(const void *name, const void *at)
{
	return strcmp(name, vgpu_symbol_name[*(const unsigned short *)at]);
}

static int compare_names(const void *a, const void *b)
{
	return is_named(vgpu_symbol_name[*(const unsigned short *)a], b);
}

static int is_at(const void *real, const void *at)
{
	uintptr_t x = (uintptr_t)real, y = (uintptr_t)*vgpu_real_at(*(const unsigned short *)at);

	return x < y ? -1 : x > y;
}

static int compare_pointers(const void *a, const void *b)
{
	return is_at(*vgpu_real_at(*(const unsigned short *)a), b);
}

static void sort_names(void)
{
	for (unsigned short i = 0; i < VGPU_SYMBOLS; i++)
		by_name[i] = i;
	qsort(by_name, VGPU_SYMBOLS, sizeof by_name[0], compare_names);
}

int vgpu_symbol_named(const char *name)
{
	const unsigned short *at;

	pthread_once(&names_once, sort_names);
	at = bsearch(name, by_name, VGPU_SYMBOLS, sizeof *by_name, is_named);
	return at ? *at : -1;
}

int vgpu_symbol_at(const void *real)
{
	const unsigned short *at =
		real ? bsearch(real, by_pointer, pointers, sizeof *by_pointer, is_at) : NULL;

	return at ? *at : -1;
}

/* ------------------------------------------------------------- the libraries */
struct vgpu_library vgpu_cuda = {.soname = "libcuda.so.1", .prefix = "cu"};
struct vgpu_library vgpu_nvml = {.soname = "libnvidia-ml.so.1", .prefix = "nvml"};
static VGPU_PRIVATE pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool loading; /* the library's constructors may call dlsym */

bool vgpu_symbol_of(const struct vgpu_library *lib, unsigned sym)
{
	return strncmp(vgpu_symbol_name[sym], lib->prefix, strlen(lib->prefix)) == 0;
}

/* load_lock is held. */
static void publish(struct vgpu_library *lib, void *const found[VGPU_SYMBOLS])
{
	if (lib == &vgpu_cuda)
		pointers = 0; /* a child may have been forked in the middle */
	for (unsigned i = 0; i < VGPU_SYMBOLS; i++)
		if (vgpu_symbol_of(lib, i))
			*vgpu_real_at(i) = found[i];
	/* Only CUDA's: NVML's pointers may still change under the order. */
	for (unsigned short i = 0; i < VGPU_SYMBOLS && lib == &vgpu_cuda; i++)
		if (found[i] && vgpu_symbol_of(lib, i))
			by_pointer[pointers++] = i;
	qsort(by_pointer, pointers, sizeof by_pointer[0], compare_pointers);
}

/* ------------------------------------------------------------------ whose call it is */
struct object {
	uintptr_t inside, low, size;
};

static void set_range(struct object *o, const struct dl_phdr_info *info)
{
	uintptr_t low = UINTPTR_MAX, high = 0;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD)
			continue;
		low = begin < low ? begin : low;
		high = begin + p->p_memsz > high ? begin + p->p_memsz : high;
	}
	o->low = low;
	o->size = high - low;
}

static int find_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct object *o = arg, this;

	(void)size;
	set_range(&this, info);
	if (o->inside - this.low >= this.size)
		return 0;
	o->low = this.low;
	o->size = this.size;
	return 1;
}

/* Where the functions that were found are. */
static struct object object_of(void *const found[VGPU_SYMBOLS])
{
	struct object o = {0, 0, 0};

	for (unsigned i = 0; i < VGPU_SYMBOLS && !o.inside; i++)
		o.inside = (uintptr_t)found[i];
	if (o.inside)
		dl_iterate_phdr(find_object, &o);
	return o;
}

static bool is_in(const struct vgpu_library *lib, const void *address)
{
	size_t size = __atomic_load_n(&lib->size, __ATOMIC_ACQUIRE);

	return (uintptr_t)address - lib->low < size;
}

bool vgpu_is_of_driver(const void *address)
{
	return is_in(&vgpu_cuda, address) || is_in(&vgpu_nvml, address);
}

/* ---------------------------------------------------------- a second copy of a library */
static const char *soname_of(const struct dl_phdr_info *info, const struct object *range)
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
	if (strings - range->low >= range->size) /* not relocated, as in the kernel's vDSO */
		strings += info->dlpi_addr;
	return at && strings - range->low < range->size ? (const char *)(strings + at) : "";
}

struct copy_search {
	const struct vgpu_library *lib;
	uintptr_t function, caller;
	struct object first;
	bool found;
};

static int find_copy(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct copy_search *s = arg;
	struct object this;

	(void)size;
	set_range(&this, info);
	if (strcmp(soname_of(info, &this), s->lib->soname) != 0)
		return 0;
	if (!s->first.size)
		s->first = this;
	if (s->function - this.low >= this.size)
		return 0;
	s->found = this.low != s->first.low && s->caller - s->first.low >= s->first.size;
	return 1;
}

void *vgpu_of_first_copy(const struct vgpu_library *lib, const char *name, void *function,
			 const void *caller)
{
	struct copy_search s = {.lib = lib,
				.function = (uintptr_t)function,
				.caller = (uintptr_t)caller};
	void *handle;

	if (!function || is_in(lib, function))
		return function;
	s.first.size = __atomic_load_n(&lib->size, __ATOMIC_ACQUIRE);
	s.first.low = lib->low;
	dl_iterate_phdr(find_copy, &s);
	if (!s.found)
		return function;
	handle = vgpu_dlopen(lib->soname, RTLD_LAZY | RTLD_NOLOAD);
	return handle ? vgpu_real_dlsym(handle, name) : NULL;
}

/* The linker's lock is taken by dlsym, and a thread that has it, because it runs the
 * constructors of a library, may come here: so no lock of ours is held while asking. All
 * threads find the same. */
static void resolve(struct vgpu_library *lib, void *handle)
{
	void *found[VGPU_SYMBOLS] = {NULL};
	struct object object;
	void *transport;

	for (unsigned i = 0; i < VGPU_SYMBOLS; i++)
		if (vgpu_symbol_of(lib, i))
			found[i] = vgpu_real_dlsym(handle, vgpu_symbol_name[i]);
	/* Only a simulated driver has this: it answers ioctls in user space. */
	transport = lib == &vgpu_cuda ? vgpu_real_dlsym(handle, "vgpu_rm_transport") : NULL;
	object = object_of(found);
	pthread_mutex_lock(&load_lock);
	if (!lib->resolved) {
		lib->low = object.low;
		__atomic_store_n(&lib->size, object.size, __ATOMIC_RELEASE);
		if (transport)
			__atomic_store_n((void **)&vgpu_transport, transport, __ATOMIC_RELEASE);
		publish(lib, found);
		lib->handle = handle;
	}
	lib->resolved = true;
	__atomic_store_n(&lib->loaded, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&load_lock);
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
