// SPDX-License-Identifier: Apache-2.0
/* getproc.c - cuGetProcAddress, and the per-thread variants made from api.def. */
#include "local.h"

#include <stdbool.h>
#include <string.h>

#define API(base, ver, sym, params)
#define APH(base, ver, sver, sym, params)
#define APS(base, ver, sver, sym, params, args) \
	CUresult sym##_ptsz params              \
	{                                       \
		return sym args;                \
	}
#define APD(base, ver, sym, params, args) \
	CUresult sym##_ptds params        \
	{                                 \
		CUresult r;               \
                                          \
		drv_per_thread = true;    \
		r = sym args;             \
		drv_per_thread = false;   \
		return r;                 \
	}
#include "api.def"
#undef API
#undef APH
#undef APS
#undef APD

typedef void (*any_fn)(void);

struct symbol {
	const char *base;
	int version;
	int per_thread_version;
	any_fn fn, per_thread;
};

#define API(base, ver, sym, params) {#base, ver, 0, (any_fn)sym, NULL},
#define APH(base, ver, sver, sym, params) {#base, ver, sver, (any_fn)sym, (any_fn)sym##_ptsz},
#define APS(base, ver, sver, sym, params, args) {#base, ver, sver, (any_fn)sym, (any_fn)sym##_ptsz},
#define APD(base, ver, sym, params, args) {#base, ver, 7000, (any_fn)sym, (any_fn)sym##_ptds},
/* Of a driver of the future: versions that no header of today has. */
__attribute__((visibility("default"))) CUresult cuMemAlloc_v99(CUdeviceptr *dptr, size_t size);
CUresult cuMemAlloc_v99(CUdeviceptr *dptr, size_t size)
{
	return cuMemAlloc_v2(dptr, size);
}

/* And one of long ago, with addresses of 32 bits. */
__attribute__((visibility("default"))) CUresult cuMemsetD8(unsigned dst, unsigned char v,
							   unsigned n);
CUresult cuMemsetD8(unsigned dst, unsigned char v, unsigned n)
{
	return cuMemsetD8_v2(dst, v, n);
}

static CUresult newer_synchronize(void)
{
	return cuCtxSynchronize();
}

static const struct symbol symbols[] = {
#include "api.def"
	{"cuMemsetD8", 2000, 0, (any_fn)cuMemsetD8, NULL},
	{"cuMemAlloc", 99000, 0, (any_fn)cuMemAlloc_v99, NULL},
	{"cuCtxSynchronize", 99000, 0, (any_fn)newer_synchronize, NULL},
};
#undef API
#undef APH
#undef APS
#undef APD

enum { FOUND, NOT_FOUND, VERSION_NOT_SUFFICIENT };
#define PER_THREAD_DEFAULT_STREAM 2u

/* The newest symbol that the version allows. One with a per-thread variant is
 * only as old as that variant when the variant is asked for. */
static int find(const char *name, int version, uint64_t flags, void **pfn)
{
	const struct symbol *best = NULL;
	int status = NOT_FOUND;
	bool per_thread;

	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		const struct symbol *s = &symbols[i];
		int since = s->version;

		if (strcmp(s->base, name) != 0)
			continue;
		if ((flags & PER_THREAD_DEFAULT_STREAM) && s->per_thread)
			since = s->per_thread_version;
		if (since <= version && (!best || s->version > best->version))
			best = s;
		status = best ? FOUND : VERSION_NOT_SUFFICIENT;
	}
	*pfn = NULL;
	if (!best)
		return status;
	per_thread = (flags & PER_THREAD_DEFAULT_STREAM) && best->per_thread;
	memcpy(pfn, per_thread ? &best->per_thread : &best->fn, sizeof(*pfn));
	return status;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
			     int *status)
{
	int st;

	if (!symbol || !pfn || flags > 2)
		return CUDA_ERROR_INVALID_VALUE;
	st = find(symbol, version, flags, pfn);
	if (status)
		*status = st;
	return CUDA_SUCCESS; /* as driver 580 does: the status alone tells */
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}

/* The driver's tables have functions without names, by which NVIDIA's own libraries launch. This one's has
 * one. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	static const void *const launch[] = {(void *)cuLaunchKernel};

	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = memcmp(id, "simgpu's launch", 16) == 0 ? launch : NULL;
	return *table ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
