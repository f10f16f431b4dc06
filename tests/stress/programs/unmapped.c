/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmapped.c - one call unmaps memory of the card with memory of the host between.
 *
 *   unmapped
 *
 * Prints the MiB that are told to be in use when 512 MiB on each side of as many of the host are
 * mapped, their handles released, and when they are unmapped.
 */
#include "kernels.h"

#define BYTES (512ull << 20)
#define PIECES 3
#define NUMA_NODE 3 /* CU_MEM_LOCATION_TYPE_HOST_NUMA */

static struct {
	CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			   unsigned long long);
	CUresult (*release)(CUmemGenericAllocationHandle);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
			unsigned long long);
	CUresult (*unmap)(CUdeviceptr, size_t), (*told)(size_t *, size_t *);
} cu;

static int find(void)
{
	void *cuda = library("", "libcuda.so.1");

	cu.create = needed(cuda, "cuMemCreate");
	cu.release = needed(cuda, "cuMemRelease");
	cu.reserve = needed(cuda, "cuMemAddressReserve");
	cu.map = needed(cuda, "cuMemMap");
	cu.unmap = needed(cuda, "cuMemUnmap");
	cu.told = needed(cuda, "cuMemGetInfo_v2");
	return cu.create && cu.release && cu.reserve && cu.map && cu.unmap && cu.told;
}

/* One piece of memory, which only its mapping keeps. */
static CUresult add(CUdeviceptr at, int location)
{
	CUmemAllocationProp prop = {.type = 1, .location = {location, 0}};
	CUmemGenericAllocationHandle handle;
	CUresult r = cu.create(&handle, BYTES, &prop, 0);

	r = r ? r : cu.map(at, BYTES, 0, handle, 0);
	return r ? r : cu.release(handle);
}

int main(void)
{
	size_t before, mapped, after, total;
	struct kernels k;
	CUdeviceptr p;

	if (kernels_open(&k, "") || !find() || cu.told(&before, &total) ||
	    cu.reserve(&p, PIECES * BYTES, 0, 0, 0))
		return 2;
	if (add(p, CU_MEM_LOCATION_TYPE_DEVICE) || add(p + BYTES, NUMA_NODE) ||
	    add(p + 2 * BYTES, CU_MEM_LOCATION_TYPE_DEVICE) || cu.told(&mapped, &total))
		return 3;
	if (cu.unmap(p, PIECES * BYTES) || cu.told(&after, &total))
		return 4;
	printf("{\"mapped_mib\":%zu,\"left_mib\":%zu}\n", (before - mapped) >> 20,
	       (before - after) >> 20);
	return 0;
}
