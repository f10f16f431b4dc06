/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - how callers get hooks: by dlsym and cuGetProcAddress. The only file that names all
 * of them. Nothing is loaded before a caller asks for a CUDA or NVML
 * name; a program that never does pays one comparison per dlsym.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/dl.h"
#include "../base/log.h"
#include "../driver/load.h"
#include "../driver/others.h"
#include "../driver/prototypes.h"
#include "../job/job.h"
#include "loader.h"

/* By number; NULL for functions that are only called. */
static void *const hooks[VGPU_SYMBOLS] = {
#define CU(name, params) (void *)name,
#define CU_USE(name, params) NULL,
#define NV_USE(name, params) NULL,
#include "../driver/hooks.def"
};

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
	return (int)strtol(name + digits, NULL, 10);
}

/* The newest version that is hooked of the function of that name; 0: it is not hooked. */
static int newest_hooked(const char *name)
{
	size_t base, other;
	int newest = 0;

	version_of(name, &base);
	for (unsigned i = 0; i < VGPU_SYMBOLS; i++) {
		int v = hooks[i] && vgpu_symbol_of(&vgpu_cuda, i)
				? version_of(vgpu_symbol_name[i], &other)
				: 0;

		if (v > newest && other == base && strncmp(name, vgpu_symbol_name[i], base) == 0)
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
			if (vgpu_real_dlsym(vgpu_cuda.handle, other) == answer)
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
 * is told that the driver does not have it, as an older one would say. All functions are refused if
 * cuGetProcAddress of a driver returns other addresses than its symbols have. */
static bool refused(const char *name, const void *answer)
{
	static bool said;
	int newest;

	if (!vgpu_state.grant || !answer)
		return false;
	newest = newest_hooked(name);
	if (!newest || is_old(name, newest, answer))
		return false;
	__atomic_add_fetch(&vgpu_state.slot->unknown_symbols, 1, __ATOMIC_RELAXED);
	if (!takes(name)) {
		vgpu_log(
			VGPU_LOG_ERROR,
			"%s: this libvgpu.so does not know the driver's function, and passes it on",
			name);
		return false;
	}
	if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		vgpu_warn("vgpu: driver: %s: this libvgpu.so does not know the driver's function, "
			  "and refuses it: want the slurm-vgpu that supports this driver",
			  name);
	return true;
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

/* Returns the answer of dlsym for a name of the library. NULL leaves the answer to the C library. */
static __attribute__((noinline)) void *hook_for(struct vgpu_library *lib, void *handle,
						const char *name, const char *version,
						const void *caller)
{
	void *asked, *found;
	bool hooked, newer;
	int sym;

	if (vgpu_loading())
		return NULL;
	sym = vgpu_symbol_named(name);
	hooked = sym >= 0 && hooks[sym];
	newer = sym < 0 && lib == &vgpu_cuda && newest_hooked(name);
	if ((hooked || newer) && !vgpu_need(lib, RTLD_NOLOAD))
		return hooked && (handle == RTLD_DEFAULT || handle == RTLD_NEXT) ? no_driver()
										 : NULL;
	/* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): lookup() has found both. */
	asked = version ? vgpu_real_dlvsym(handle, name, version) : vgpu_real_dlsym(handle, name);
	found = vgpu_of_first_copy(lib, name, asked, caller);
	if (newer && refused(name, found))
		return (void *)not_found;
	/* Ours only when the caller's question leads to the driver's function. */
	if (hooked && found && *vgpu_real_at((unsigned)sym) &&
	    (found == *vgpu_real_at((unsigned)sym) || found == hooks[sym]))
		return hooks[sym];
	if (found == asked)
		return NULL;
	return found ? found : VGPU_NOTHING;
}

/* Returns the hook, or NULL when the caller is to get what the C library gives. Calls no
 * function for any other name: the runtime of a sanitizer asks for its own before it is ready. */
VGPU_EARLY static inline __attribute__((always_inline)) void *
lookup(void *handle, const char *name, const char *version, const void *caller)
{
	if (unlikely(!__atomic_load_n(&vgpu_real_dlsym, __ATOMIC_RELAXED)))
		vgpu_need_dlsym();
	if (!name || !vgpu_real_dlsym || !vgpu_real_dlvsym)
		return NULL;
	if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') /* no cublas */
		return hook_for(&vgpu_cuda, handle, name, version, caller);
	if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')
		return hook_for(&vgpu_nvml, handle, name, version, caller);
	if (((name[0] == 'c' && name[1] == 'l') || (name[0] == 'v' && name[1] == 'k') ||
	     (name[0] == 'g' && name[1] == 'l')) &&
	    name[2] >= 'A' && name[2] <= 'Z') /* no clock_gettime */
		return vgpu_others_hook(handle, name, version);
	if ((name[0] == 'e' && name[1] == 'g' && name[2] == 'l') ||
	    (name[0] == 'o' && name[1] == 'p' && name[2] == 't'))
		return vgpu_others_hook(handle, name, version);
	if (name[0] == 'd' && name[1] == 'l')
		return vgpu_loader_hook(handle, name, version);
	return NULL;
}

/* Called by loader.c with the caller's arguments, the third also where dlsym has none. */
__attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name, const char *unused,
					      const void *caller);
VGPU_EARLY __attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name,
							 const char *unused, const void *caller)
{
	(void)unused;
	return lookup(handle, name, NULL, caller);
}

__attribute__((used)) void *vgpu_dlvsym_lookup(void *handle, const char *name, const char *version,
					       const void *caller);
VGPU_EARLY __attribute__((used)) void *vgpu_dlvsym_lookup(void *handle, const char *name,
							  const char *version, const void *caller)
{
	return version ? lookup(handle, name, version, caller) : NULL;
}

/* --------------------------------------------------------- cuGetProcAddress */
/* The driver answers first; only then is the pointer mapped, so versions,
 * per-thread streams and status are the driver's own decisions. */
static void *hook_of(const char *name, void *real)
{
	int sym = vgpu_symbol_at(real);

	if (sym < 0)
		return name && refused(name, real) ? NULL : real;
	return hooks[sym] ? hooks[sym] : real;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	CUresult r;

	VGPU_NEED_CUDA(cuGetProcAddress);
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

	VGPU_NEED_CUDA(cuGetProcAddress_v2);
	r = vgpu_real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
	if (r != CUDA_SUCCESS || !pfn || !*pfn)
		return r;
	*pfn = hook_of(symbol, *pfn);
	return *pfn ? r : vgpu_real.cuGetProcAddress_v2(NO_FUNCTION, pfn, version, flags, status);
}
