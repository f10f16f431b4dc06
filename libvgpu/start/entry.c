/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - how callers get hooks: by dlsym and cuGetProcAddress. The only file that names all
 * of them. Nothing is loaded before a caller asks for a CUDA or NVML
 * name; a program that never does pays one comparison per dlsym.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
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

static int symbol_named(const char *name)
{
	for (int i = 0; i < VGPU_SYMBOLS; i++)
		if (strcmp(name, vgpu_symbol_name[i]) == 0)
			return i;
	return -1;
}

/* ------------------------------------------------- functions of a newer driver */
/* The length of a name without its version and the kind of default stream. */
static size_t base_of(const char *name)
{
	size_t n = strlen(name), digits;

	if (n > 5 && (strcmp(name + n - 5, "_ptsz") == 0 || strcmp(name + n - 5, "_ptds") == 0))
		n -= 5;
	for (digits = n; digits && name[digits - 1] >= '0' && name[digits - 1] <= '9'; digits--)
		;
	return digits < n && digits > 2 && strncmp(name + digits - 2, "_v", 2) == 0 ? digits - 2
										    : n;
}

/* Some version of the function has a hook. */
static bool has_hook(const char *name)
{
	size_t base = base_of(name);

	for (unsigned i = 0; i < VGPU_SYMBOLS; i++)
		if (hooks[i] && vgpu_symbol_of(&vgpu_cuda, i) &&
		    strncmp(name, vgpu_symbol_name[i], base) == 0 &&
		    base_of(vgpu_symbol_name[i]) == base)
			return true;
	return false;
}

/* Before CUDA 3.2 addresses had 32 bits: these functions have no hook. */
static bool is_old(const void *function)
{
	static const char *const names[] = {"cuMemcpyDtoD",      "cuMemcpyDtoH",
					    "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync",
					    "cuMemcpyHtoDAsync", "cuMemsetD8",
					    "cuMemsetD16",       "cuMemsetD32",
					    "cuMemsetD2D8",      "cuMemsetD2D16",
					    "cuMemsetD2D32"};

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (vgpu_real_dlsym(vgpu_cuda.handle, names[i]) == function)
			return true;
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
	if (!vgpu_state.grant || !answer || !has_hook(name) || is_old(answer))
		return false;
	ADD(&vgpu_state.slot->unknown_symbols, 1);
	if (!takes(name)) {
		vgpu_log(
			VGPU_LOG_ERROR,
			"%s: this libvgpu.so does not know the driver's function, and passes it on",
			name);
		return false;
	}
	vgpu_warn_once("vgpu: driver: %s: this libvgpu.so does not know the driver's function, "
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
	sym = symbol_named(name);
	hooked = sym >= 0 && hooks[sym];
	newer = sym < 0 && lib == &vgpu_cuda && has_hook(name);
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

/* No cublas, and no clock_gettime. */
VGPU_EARLY static inline bool begins(const char *name, char first, char second)
{
	return name[0] == first && name[1] == second && name[2] >= 'A' && name[2] <= 'Z';
}

/* Returns the hook, or NULL when the caller is to get what the C library gives. Calls no
 * function for any other name: the runtime of a sanitizer asks for its own before it is ready. */
VGPU_EARLY static inline __attribute__((always_inline)) void *
lookup(void *handle, const char *name, const char *version, const void *caller)
{
	if (unlikely(!LOAD(&vgpu_real_dlsym)))
		vgpu_need_dlsym();
	if (!name || !vgpu_real_dlsym || !vgpu_real_dlvsym)
		return NULL;
	if (begins(name, 'c', 'u'))
		return hook_for(&vgpu_cuda, handle, name, version, caller);
	if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')
		return hook_for(&vgpu_nvml, handle, name, version, caller);
	if (begins(name, 'c', 'l') || begins(name, 'v', 'k') || begins(name, 'g', 'l') ||
	    (name[0] == 'e' && name[1] == 'g' && name[2] == 'l') ||
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
	bool known = false;

	for (unsigned i = 0; i < VGPU_SYMBOLS; i++) {
		if (*vgpu_real_at(i) != real)
			continue;
		if (hooks[i])
			return hooks[i];
		known = true;
	}
	return !known && name && refused(name, real) ? NULL : real;
}

#define GET_PROC(name, params, ...)                                         \
	CUresult name params                                                \
	{                                                                   \
		CUresult r;                                                 \
                                                                            \
		VGPU_NEED_CUDA(name);                                       \
		r = vgpu_real.name(symbol, __VA_ARGS__);                    \
		if (r != CUDA_SUCCESS || !pfn || !*pfn)                     \
			return r;                                           \
		*pfn = hook_of(symbol, *pfn);                               \
		return *pfn ? r : vgpu_real.name(NO_FUNCTION, __VA_ARGS__); \
	}
GET_PROC(cuGetProcAddress, (const char *symbol, void **pfn, int version, uint64_t flags), pfn,
	 version, flags)
GET_PROC(cuGetProcAddress_v2,
	 (const char *symbol, void **pfn, int version, uint64_t flags, int *status), pfn, version,
	 flags, status)
