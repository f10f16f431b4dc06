/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poolend.c - memory that pools hold counts: of pools that were destroyed while the
 * program held some of it, which the driver keeps until that is freed, and of more
 * pools than any program should have.
 *
 *   poolend destroyed|many [--libdir DIR]
 *
 * destroyed: takes 256 MiB from a pool and destroys the pool, until refused; gives all
 * back. many: 300 pools, 32 MiB of each. One JSON line: bytes taken, bytes that CUDA says
 * are used then, and when all is freed.
 */
#include <stdlib.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define MAX_POOLS 300
#define MIB (1ull << 20)

static CUresult (*info)(size_t *, size_t *);

static long long used(void)
{
	size_t left = 0, total = 0;

	return info(&left, &total) == CUDA_SUCCESS ? (long long)(total - left) : -1;
}

int main(int argc, char **argv)
{
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*use)(CUcontext);
	CUresult (*create)(CUmemoryPool *, const CUmemPoolProps *), (*destroy)(CUmemoryPool);
	CUresult (*take)(CUdeviceptr *, size_t, CUmemoryPool, CUstream), (*sync)(void);
	CUresult (*give)(CUdeviceptr, CUstream), r = CUDA_SUCCESS, odd = CUDA_SUCCESS;
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	static CUmemoryPool pools[MAX_POOLS];
	static CUdeviceptr held[MAX_POOLS];
	int early = argc > 1 && strcmp(argv[1], "destroyed") == 0, n, taken = 0;
	size_t bytes = early ? 256 * MIB : 32 * MIB;
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	long long before, most;
	CUcontext ctx;

#define FIND(to, name)                            \
	*(void **)&to = dlsym(cuda, name);        \
	if (!to) {                                \
		fprintf(stderr, "no " name "\n"); \
		return 3;                         \
	}
	if (!cuda)
		return 3;
	FIND(init, "cuInit")
	FIND(retain, "cuDevicePrimaryCtxRetain")
	FIND(use, "cuCtxSetCurrent")
	FIND(create, "cuMemPoolCreate")
	FIND(destroy, "cuMemPoolDestroy")
	FIND(take, "cuMemAllocFromPoolAsync")
	FIND(give, "cuMemFreeAsync")
	FIND(sync, "cuCtxSynchronize")
	FIND(info, "cuMemGetInfo_v2")
	if (init(0) || retain(&ctx, 0) || use(ctx))
		return 3;
	before = used();
	for (n = 0; n < MAX_POOLS && r == CUDA_SUCCESS; n++) {
		if ((odd = create(&pools[n], &props)) != CUDA_SUCCESS)
			break;
		r = take(&held[taken], bytes, pools[n], NULL);
		taken += r == CUDA_SUCCESS;
		if (early)
			odd |= destroy(pools[n]);
	}
	odd |= sync();
	most = used();
	for (int i = 0; i < taken; i++)
		odd |= give(held[i], NULL);
	odd |= sync();
	for (int i = 0; !early && i < n; i++)
		odd |= destroy(pools[i]);
	printf("{\"bench\":\"poolend\",\"pools\":%d,\"taken\":%llu,\"last\":%d,\"used_mib\":%lld,"
	       "\"after_mib\":%lld,\"error\":%d}\n",
	       n, taken * (unsigned long long)bytes / MIB, r, (most - before) / (long long)MIB,
	       (used() - before) / (long long)MIB, odd);
	return odd ? 1 : 0;
}
