/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - how callers get hooks: the tables made from hooks.def, dlsym and
 * cuGetProcAddress. Nothing is loaded before a caller asks for a CUDA or NVML
 * name; a program that never does pays one comparison per dlsym.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

struct vgpu_real vgpu_real;

enum sym {
#define CU(name, params) SYM_##name,
#define NV(name, params) SYM_##name,
#define CU_USE(name, params) SYM_##name,
#define NV_USE(name, params) SYM_##name,
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE
	SYM_COUNT
};

/* hook is NULL for functions that are only called. */
static const struct symbol {
	const char *name;
	void *hook;
} symbols[SYM_COUNT] = {
#define CU(name, params) {#name, (void *)name},
#define NV(name, params) {#name, (void *)name},
#define CU_USE(name, params) {#name, NULL},
#define NV_USE(name, params) {#name, NULL},
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE
};

_Static_assert(sizeof(struct vgpu_real) == SYM_COUNT * sizeof(void *), "table of real functions");

static void **real_at(unsigned sym)
{
	return (void **)&vgpu_real + sym;
}

/* ----------------------------------------------------------- sorted indexes */
static unsigned short by_name[SYM_COUNT], by_pointer[SYM_COUNT];
static unsigned pointers; /* entries of by_pointer */
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static int compare_names(const void *a, const void *b)
{
	return strcmp(symbols[*(const unsigned short *)a].name,
		      symbols[*(const unsigned short *)b].name);
}

static int compare_pointers(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*real_at(*(const unsigned short *)a);
	uintptr_t y = (uintptr_t)*real_at(*(const unsigned short *)b);

	return x < y ? -1 : x > y;
}

static void sort_names(void)
{
	for (unsigned short i = 0; i < SYM_COUNT; i++)
		by_name[i] = i;
	qsort(by_name, SYM_COUNT, sizeof by_name[0], compare_names);
}

static int symbol_named(const char *name)
{
	int lo = 0, hi = SYM_COUNT - 1;

	pthread_once(&names_once, sort_names);
	while (lo <= hi) {
		int mid = (lo + hi) / 2, c = strcmp(name, symbols[by_name[mid]].name);

		if (c == 0)
			return by_name[mid];
		if (c < 0)
			hi = mid - 1;
		else
			lo = mid + 1;
	}
	return -1;
}

/* ------------------------------------------------------------- the libraries */
struct library {
	const char *soname, *prefix;
	void *handle;
	bool resolved; /* under load_lock */
	int loaded;    /* set last, with release order */
};
static struct library cuda = {"libcuda.so.1", "cu", NULL, false, 0};
static struct library nvml = {"libnvidia-ml.so.1", "nvml", NULL, false, 0};
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool loading; /* the library's constructors may call dlsym */

static bool is_of(const struct library *lib, unsigned sym)
{
	return strncmp(symbols[sym].name, lib->prefix, strlen(lib->prefix)) == 0;
}

/* load_lock is held. */
static void publish(struct library *lib, void *const found[SYM_COUNT])
{
	if (lib == &cuda)
		pointers = 0; /* a child may have been forked in the middle */
	for (unsigned i = 0; i < SYM_COUNT; i++)
		if (is_of(lib, i))
			*real_at(i) = found[i];
	/* Only CUDA's: NVML's pointers may still change under the order. */
	for (unsigned short i = 0; i < SYM_COUNT && lib == &cuda; i++)
		if (found[i] && is_of(lib, i))
			by_pointer[pointers++] = i;
	qsort(by_pointer, pointers, sizeof by_pointer[0], compare_pointers);
}

/* The linker's lock is taken by dlsym, and a thread that has it, because it runs the
 * constructors of a library, may come here: so no lock of ours is held while asking. All
 * threads find the same. */
static void resolve(struct library *lib, void *handle)
{
	void *found[SYM_COUNT] = {NULL};
	void *transport;

	for (unsigned i = 0; i < SYM_COUNT; i++)
		if (is_of(lib, i))
			found[i] = vgpu_real_dlsym(handle, symbols[i].name);
	/* Only a simulated driver has this: it answers ioctls in user space. */
	transport = lib == &cuda ? vgpu_real_dlsym(handle, "vgpu_rm_transport") : NULL;
	pthread_mutex_lock(&load_lock);
	if (!lib->resolved) {
		if (transport)
			vgpu_rm_set_transport((int (*)(int, unsigned long, void *))transport);
		publish(lib, found);
		lib->handle = handle;
	}
	lib->resolved = true;
	__atomic_store_n(&lib->loaded, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&load_lock);
}

/* mode: RTLD_NOLOAD takes the library only if somebody else has loaded it. It stays from
 * then on, however often its users close it: the table points into it. */
static bool need(struct library *lib, int mode)
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

void vgpu_entry_in_child(void)
{
	pthread_mutex_init(&load_lock, NULL); /* whoever held it is not here */
	cuda.loaded = 0;
	loading = false;
}

void vgpu_need_cuda(void)
{
	need(&cuda, 0);
}

void vgpu_need_nvml(void)
{
	need(&nvml, 0);
}

/* An index of the table, or -1. */
static int symbol_at(const void *real)
{
	int lo = 0, hi = (int)pointers - 1;

	while (real && lo <= hi) {
		int mid = (lo + hi) / 2;
		uintptr_t p = (uintptr_t)*real_at(by_pointer[mid]);

		if (p == (uintptr_t)real)
			return by_pointer[mid];
		if ((uintptr_t)real < p)
			hi = mid - 1;
		else
			lo = mid + 1;
	}
	return -1;
}

/* ------------------------------------------------- what a newer driver has more */
/* The version that a name ends in, 1 where it says none; *base: the letters before it. */
static int version_of(const char *name, size_t *base)
{
	size_t n = strlen(name), digits;

	if (n > 5 && (strcmp(name + n - 5, "_ptsz") == 0 || strcmp(name + n - 5, "_ptds") == 0))
		n -= 5;
	for (digits = n; digits && name[digits - 1] >= '0' && name[digits - 1] <= '9'; digits--)
		;
	*base = n;
	if (digits == n || digits < 3 || name[digits - 1] != 'v' || name[digits - 2] != '_')
		return 1;
	*base = digits - 2;
	return atoi(name + digits);
}

/* The newest version that is hooked of the function of that name; 0: it is not hooked. */
static int newest_hooked(const char *name)
{
	size_t base, other;
	int newest = 0;

	version_of(name, &base);
	for (unsigned i = 0; i < SYM_COUNT; i++) {
		int v = symbols[i].hook && is_of(&cuda, i) ? version_of(symbols[i].name, &other)
							   : 0;

		if (v > newest && other == base && strncmp(name, symbols[i].name, base) == 0)
			newest = v;
	}
	return newest;
}

/* What the driver answers is none of the table's. It is old, where it is the one of such a name. */
static bool is_old(const char *name, int newest, const void *answer)
{
	static const char *const ends[] = {"", "_ptsz", "_ptds"};
	char other[80], version[16] = "";
	size_t base;

	version_of(name, &base);
	for (int v = 1; v <= newest && base < sizeof other - 16; v++) {
		if (v > 1)
			snprintf(version, sizeof version, "_v%d", v);
		for (unsigned i = 0; i < 3; i++) {
			snprintf(other, sizeof other, "%.*s%s%s", (int)base, name, version,
				 ends[i]);
			if (vgpu_real_dlsym(cuda.handle, other) == answer)
				return true;
		}
	}
	return false;
}

/* Takes memory or starts work, or finds other functions. */
static bool takes(const char *name)
{
	static const char *const begin[] = {"cuMemAlloc",         "cuMemCreate",
					    "cuMemPoolCreate",    "cuArray",
					    "cuMipmapped",        "cuModuleLoad",
					    "cuLibraryLoad",      "cuLaunch",
					    "cuGraphLaunch",      "cuGraphUpload",
					    "cuGraphInstantiate", "cuMemcpy",
					    "cuMemset",           "cuCtxCreate",
					    "cuGreenCtxCreate",   "cuDevicePrimaryCtxRetain",
					    "cuGetProcAddress"};

	for (unsigned i = 0; i < sizeof begin / sizeof *begin; i++)
		if (strncmp(name, begin[i], strlen(begin[i])) == 0)
			return true;
	return false;
}

/* A function that the driver has under this name is a newer version of one that is hooked: it
 * may take other arguments, so no hook stands for it. Where it would pass a limit the program
 * is told that the driver does not have it, as an older one would say. */
static bool refused(const char *name, const void *answer)
{
	static unsigned said;
	int newest;

	if (!vgpu_state.grant || !answer)
		return false;
	newest = newest_hooked(name);
	if (!newest || is_old(name, newest, answer))
		return false;
	__atomic_add_fetch(&vgpu_state.slot->unknown_symbols, 1, __ATOMIC_RELAXED);
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		vgpu_log(VGPU_LOG_ERROR,
			 "%s: the driver has a version that is newer than this libvgpu: %s", name,
			 takes(name) ? "refused" : "passed on");
	return takes(name);
}

/* -------------------------------------------------------------------- dlsym */
/* No driver has it. */
#define NO_FUNCTION "cuNoSuchFunction"

/* In place of a function that is refused. */
static CUresult not_found(void)
{
	return CUDA_ERROR_NOT_FOUND;
}

/* As long as no driver is loaded, what this library exports is not to be found either: a program
 * that asks for one name takes all of them for there. Sets dlerror. */
static void *no_driver(void)
{
	vgpu_real_dlsym(RTLD_NEXT, NO_FUNCTION);
	return VGPU_NOTHING;
}

/* The hook for a name that may be one of ours, or NULL; VGPU_NOTHING: there is none. */
static __attribute__((noinline)) void *hook_for(struct library *lib, void *handle, const char *name,
						const char *version)
{
	void *found;
	int sym;

	if (loading)
		return NULL;
	sym = symbol_named(name);
	if (sym < 0 && lib == &cuda && newest_hooked(name) && need(lib, RTLD_NOLOAD))
		return refused(name, vgpu_real_dlsym(handle, name)) ? (void *)not_found : NULL;
	if (sym < 0 || !symbols[sym].hook)
		return NULL;
	if (!need(lib, RTLD_NOLOAD))
		return handle == RTLD_DEFAULT || handle == RTLD_NEXT ? no_driver() : NULL;
	if (!*real_at((unsigned)sym))
		return NULL;
	/* Ours only when the caller's question leads to the driver's function. */
	/* Found, or need() would have loaded nothing. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
	found = version ? vgpu_real_dlvsym(handle, name, version) : vgpu_real_dlsym(handle, name);
	return found && (found == *real_at((unsigned)sym) || found == symbols[sym].hook)
		       ? symbols[sym].hook
		       : NULL;
}

/* Returns the hook, or NULL when the caller is to get what the C library gives. Calls no
 * function for any other name: the runtime of a sanitizer asks for its own before it is ready. */
VGPU_EARLY static inline __attribute__((always_inline)) void *lookup(void *handle, const char *name,
								     const char *version)
{
	if (unlikely(!__atomic_load_n(&vgpu_real_dlsym, __ATOMIC_RELAXED)))
		vgpu_need_dlsym();
	if (!name || !vgpu_real_dlsym || !vgpu_real_dlvsym)
		return NULL;
	if (name[0] == 'c' && name[1] == 'u')
		return hook_for(&cuda, handle, name, version);
	if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')
		return hook_for(&nvml, handle, name, version);
	if (name[0] == 'd' && name[1] == 'l')
		return vgpu_loader_hook(handle, name, version);
	return NULL;
}

__attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name);
VGPU_EARLY __attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name)
{
	return lookup(handle, name, NULL);
}

__attribute__((used)) void *vgpu_dlvsym_lookup(void *handle, const char *name, const char *version);
VGPU_EARLY __attribute__((used)) void *vgpu_dlvsym_lookup(void *handle, const char *name,
							  const char *version)
{
	return version ? lookup(handle, name, version) : NULL;
}

/* --------------------------------------------------------- cuGetProcAddress */
/* The driver answers first; only then is the pointer mapped, so versions,
 * per-thread streams and status are the driver's own decisions. */
static void *hook_of(const char *name, void *real)
{
	int sym = symbol_at(real);

	if (sym < 0)
		return name && refused(name, real) ? NULL : real;
	return symbols[sym].hook ? symbols[sym].hook : real;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGetProcAddress)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuGetProcAddress(symbol, pfn, version, flags);
	if (r != CUDA_SUCCESS || !pfn || !*pfn)
		return r;
	*pfn = hook_of(symbol, *pfn);
	return *pfn ? r : vgpu_real.cuGetProcAddress(NO_FUNCTION, pfn, version, flags);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
			     int *status)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGetProcAddress_v2)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
	if (r != CUDA_SUCCESS || !pfn || !*pfn)
		return r;
	*pfn = hook_of(symbol, *pfn);
	return *pfn ? r : vgpu_real.cuGetProcAddress_v2(NO_FUNCTION, pfn, version, flags, status);
}
#endif
