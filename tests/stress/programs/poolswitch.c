/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poolswitch.c - memory of a pool that is made current, then no longer.
 *
 *   poolswitch [--libdir DIR]
 *
 * Takes and frees 1 GiB, which the pool keeps: of the device's own pool first, then of
 * one that was made current, then again of its own after the other was destroyed.
 * Prints what the process is told is in use after each, in MiB.
 */
#include <stdint.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define GIB (1ull << 30)
#define RELEASE_THRESHOLD 4

static CUresult (*init)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
static CUresult (*get_info)(size_t *, size_t *), (*create)(CUmemoryPool *, const CUmemPoolProps *);
static CUresult (*set_attribute)(CUmemoryPool, int, void *), (*destroy)(CUmemoryPool);
static CUresult (*set_pool)(CUdevice, CUmemoryPool), (*get_pool)(CUmemoryPool *, CUdevice);
static CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
static CUresult (*free_async)(CUdeviceptr, CUstream), (*trim)(CUmemoryPool, size_t),
	(*ctx_sync)(void);

static int find(void *cuda, const char *name, void *into)
{
	*(void **)into = dlsym(cuda, name);
	if (!*(void **)into)
		fprintf(stderr, "poolswitch: no %s\n", name);
	return *(void **)into == NULL;
}

/* What is in use once the current pool has 1 GiB that nobody holds, and another one
 * (NULL: none) has given back what it keeps; -1: failed. */
static long use(CUmemoryPool empty)
{
	size_t free_bytes, total;
	CUdeviceptr p;

	if (alloc_async(&p, GIB, NULL) || free_async(p, NULL) || ctx_sync() ||
	    (empty && trim(empty, 0)) || get_info(&free_bytes, &total))
		return -1;
	return (long)((total - free_bytes) >> 20);
}

int main(int argc, char **argv)
{
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	CUmemPoolProps props = {.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	uint64_t most = ~0ull;
	CUmemoryPool own, other;
	CUcontext ctx;
	long used[3];

	if (!cuda || find(cuda, "cuInit", &init) ||
	    find(cuda, "cuDevicePrimaryCtxRetain", &retain) ||
	    find(cuda, "cuCtxSetCurrent", &set_current) ||
	    find(cuda, "cuMemGetInfo_v2", &get_info) || find(cuda, "cuMemPoolCreate", &create) ||
	    find(cuda, "cuMemPoolSetAttribute", &set_attribute) ||
	    find(cuda, "cuMemPoolDestroy", &destroy) || find(cuda, "cuMemPoolTrimTo", &trim) ||
	    find(cuda, "cuDeviceSetMemPool", &set_pool) ||
	    find(cuda, "cuDeviceGetMemPool", &get_pool) ||
	    find(cuda, "cuMemAllocAsync", &alloc_async) ||
	    find(cuda, "cuMemFreeAsync", &free_async) || find(cuda, "cuCtxSynchronize", &ctx_sync))
		return 2;
	if (init(0) || retain(&ctx, 0) || set_current(ctx) || get_pool(&own, 0) ||
	    create(&other, &props) || set_attribute(own, RELEASE_THRESHOLD, &most) ||
	    set_attribute(other, RELEASE_THRESHOLD, &most))
		return 3;
	used[0] = use(NULL);
	if (set_pool(0, other))
		return 4;
	used[1] = use(own);
	/* The device's own pool is current again. */
	if (destroy(other))
		return 5;
	used[2] = use(NULL);
	printf("%ld %ld %ld\n", used[0], used[1], used[2]);
	return 0;
}
