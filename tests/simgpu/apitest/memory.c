// SPDX-License-Identifier: Apache-2.0
/* memory.c - cases about memory, on a card of 80 GiB with contexts of 500 MiB. */
#define _GNU_SOURCE
#include "apitest.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD (81920 * MIB)
#define CONTEXT (500 * MIB)

void case_before_init(void)
{
	CUdeviceptr p;
	CUdevice d;
	int n;

	EQ(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
	EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	OK(cuInit(0));
	OK(cuDriverGetVersion(&n));
	EQ(n, 13000);
	EQ(cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuDeviceGet(&d, 0));
	EQ(cuDeviceGet(&d, 16), CUDA_ERROR_INVALID_DEVICE);
}

void case_memory(void)
{
	CUdeviceptr p, q;
	size_t pitch, total;

	start();
	OK(cuDeviceTotalMem_v2(&total, 0));
	EQ(total, CARD);
	EQ(free_bytes(), CARD - CONTEXT);
	OK(cuMemAlloc_v2(&p, 1000 * MIB));
	EQ(free_bytes(), CARD - CONTEXT - 1000 * MIB);
	OK(cuMemAlloc_v2(&q, 3 * MIB)); /* whole pages of 2 MiB */
	EQ(free_bytes(), CARD - CONTEXT - 1004 * MIB);
	EQ(cuMemAlloc_v2(&q, CARD), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAlloc_v2(&q, free_bytes() + 1), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAlloc_v2(&q, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAlloc_v2(&q, free_bytes()));
	EQ(free_bytes(), 0);
	OK(cuMemFree_v2(q));
	EQ(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	OK(cuMemFree_v2(0));
	OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 4096, 4));
	EQ(pitch, 1024);
	EQ(free_bytes(), CARD - CONTEXT - 4 * MIB - 4 * MIB);
}

void case_small_memory(void)
{
	CUdeviceptr p[5000];
	size_t before;

	start();
	before = free_bytes();
	for (int i = 0; i < 5000; i++)
		OK(cuMemAlloc_v2(&p[i], 1000)); /* 1024 bytes each */
	EQ(before - free_bytes(), 6 * MIB);
	for (int i = 0; i < 5000; i++)
		OK(cuMemFree_v2(p[i]));
	EQ(free_bytes(), before);
}

void case_managed(void)
{
	CUdeviceptr p;
	size_t before;
	unsigned *u;

	start();
	before = free_bytes();
	OK(cuMemAllocManaged(&p, 4 * MIB, 1));
	EQ(before - free_bytes(), 4 * MIB);
	u = (unsigned *)(uintptr_t)p;
	OK(cuMemsetD32_v2(p, 7, 1024));
	EQ(u[1023], 7);
	OK(cuMemFree_v2(p));
	EQ(free_bytes(), before);
}

static uint64_t pool_attr(CUmemoryPool p, int attr)
{
	uint64_t v = 0;

	OK(cuMemPoolGetAttribute(p, attr, &v));
	return v;
}

void case_pool(void)
{
	uint64_t keep = 64 * MIB, zero = 0;
	CUdeviceptr a, b;
	CUmemoryPool p;
	size_t before;

	start();
	before = free_bytes();
	OK(cuDeviceGetDefaultMemPool(&p, 0));
	OK(cuMemAllocAsync(&a, MIB, NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
	EQ(before - free_bytes(), 32 * MIB);
	OK(cuMemAllocAsync(&b, 40 * MIB, NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
	OK(cuMemFreeAsync(b, NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB); /* kept until a sync */
	OK(cuStreamSynchronize(NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 64 * MIB);
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 41 * MIB);
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocAsync(&b, 100 * MIB, NULL));
	OK(cuMemFreeAsync(b, NULL));
	OK(cuStreamSynchronize(NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB); /* the threshold stays */
	OK(cuMemPoolTrimTo(p, 0));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH), MIB);
	OK(cuMemFree_v2(a)); /* the plain free takes pool memory too */
	OK(cuMemPoolTrimTo(p, 0));
	EQ(free_bytes(), before);
	EQ(cuMemFreeAsync(a, NULL), CUDA_ERROR_INVALID_VALUE);
}

/* Free memory in pieces is of no use for a large allocation. A step goes back when all of it is free. */
void case_pool_fragments(void)
{
	uint64_t all = UINT64_MAX;
	CUdeviceptr piece[64], large;
	CUmemoryPool p;

	start();
	OK(cuDeviceGetDefaultMemPool(&p, 0));
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	for (int i = 0; i < 64; i++)
		OK(cuMemAllocAsync(&piece[i], MIB, NULL));
	for (int i = 0; i < 64; i += 2)
		OK(cuMemFreeAsync(piece[i], NULL));
	OK(cuStreamSynchronize(NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
	OK(cuMemAllocAsync(&piece[0], MIB, NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
	OK(cuMemAllocAsync(&large, 16 * MIB, NULL));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 96 * MIB);
	OK(cuMemPoolTrimTo(p, 0));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 96 * MIB);
	for (int i = 33; i < 64; i += 2)
		OK(cuMemFreeAsync(piece[i], NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolTrimTo(p, 0));
	EQ(pool_attr(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
}

void case_pool_pressure(void)
{
	CUmemPoolProps props = {.allocType = 1, .location = {1, 0}};
	uint64_t all = UINT64_MAX;
	CUmemoryPool p;
	CUdeviceptr a, big;

	start();
	OK(cuMemPoolCreate(&p, &props));
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	OK(cuMemAllocFromPoolAsync(&a, 1000 * MIB, p, NULL));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	EQ(free_bytes(), CARD - CONTEXT - 1024 * MIB);
	/* what the pool holds unused is given up before the process is refused */
	OK(cuMemAlloc_v2(&big, CARD - CONTEXT));
	EQ(free_bytes(), 0);
	EQ(cuMemAllocFromPoolAsync(&a, MIB, p, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(big));
	OK(cuMemAllocFromPoolAsync(&a, MIB, p, NULL));
	OK(cuMemPoolDestroy(p)); /* memory in use outlives it */
	EQ(free_bytes(), CARD - CONTEXT - 32 * MIB);
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	EQ(free_bytes(), CARD - CONTEXT);
}

void case_vmm(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
	CUmemAccessDesc access = {{1, 0}, 3};
	CUmemGenericAllocationHandle h, again;
	CUdeviceptr va;
	size_t before, g;

	start();
	before = free_bytes();
	OK(cuMemGetAllocationGranularity(&g, &prop, 0));
	EQ(g, 2 * MIB);
	EQ(cuMemCreate(&h, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemCreate(&h, CARD, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemCreate(&h, 64 * MIB, &prop, 0));
	EQ(before - free_bytes(), 64 * MIB);
	OK(cuMemAddressReserve(&va, 128 * MIB, 0, 0, 0));
	EQ(before - free_bytes(), 64 * MIB); /* addresses cost nothing */
	OK(cuMemMap(va, 64 * MIB, 0, h, 0));
	EQ(cuMemMap(va, 64 * MIB, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemSetAccess(va, 64 * MIB, &access, 1));
	OK(cuMemMap(va + 64 * MIB, 64 * MIB, 0, h, 0)); /* twice */
	OK(cuMemRelease(h));
	EQ(before - free_bytes(), 64 * MIB); /* mapped: it stays */
	OK(cuMemUnmap(va, 64 * MIB));
	EQ(before - free_bytes(), 64 * MIB);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 64 * MIB)));
	EQ(again, h);
	OK(cuMemUnmap(va + 64 * MIB, 64 * MIB));
	EQ(before - free_bytes(), 64 * MIB); /* the retained handle */
	OK(cuMemRelease(again));
	EQ(free_bytes(), before);
	OK(cuMemAddressFree(va, 128 * MIB));
}

/* What is freed while a descriptor of a part of it is open is there until that is closed. */
void case_dmabuf(void)
{
	CUmemAllocationProp prop = {.type = 1, .location = {1, 0}};
	CUmemGenericAllocationHandle h;
	CUdeviceptr a, va;
	size_t before;
	int fd[2];

	start();
	before = free_bytes();
	OK(cuMemAlloc_v2(&a, 64 * MIB));
	EQ(cuMemGetHandleForAddressRange(fd, a, MIB + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
	EQ(cuMemGetHandleForAddressRange(fd, a, 128 * MIB, 1, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetHandleForAddressRange(&fd[0], a, MIB, 1, 0));
	OK(cuMemGetHandleForAddressRange(&fd[1], a + MIB, MIB, 1, 0));
	OK(cuMemFree_v2(a));
	EQ(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
	close(fd[0]);
	EQ(before - free_bytes(), 64 * MIB);
	close(fd[1]);
	EQ(free_bytes(), before);
	OK(cuMemAllocAsync(&a, 64 * MIB, NULL));
	OK(cuMemGetHandleForAddressRange(fd, a, MIB, 1, 0));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuCtxSynchronize());
	EQ(before - free_bytes(), 64 * MIB);
	close(fd[0]);
	EQ(free_bytes(), before);
	OK(cuMemCreate(&h, 64 * MIB, &prop, 0));
	OK(cuMemAddressReserve(&va, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(va, 64 * MIB, 0, h, 0));
	OK(cuMemGetHandleForAddressRange(fd, va + MIB, MIB, 1, 0));
	OK(cuMemUnmap(va, 64 * MIB));
	OK(cuMemRelease(h));
	EQ(before - free_bytes(), 64 * MIB);
	close(fd[0]);
	EQ(free_bytes(), before);
}

void case_arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR d = {.Width = 4096, .Height = 4096, .Format = 0x20, .NumChannels = 4};
	CUDA_ARRAY3D_DESCRIPTOR d3 = {.Width = 1024,
				      .Height = 1024,
				      .Format = 0x01,
				      .NumChannels = 4};
	CUmipmappedArray m;
	size_t before;
	CUarray a;

	start();
	before = free_bytes();
	OK(cuArrayCreate_v2(&a, &d));
	EQ(before - free_bytes(), 256 * MIB);
	OK(cuArrayDestroy(a));
	EQ(free_bytes(), before);
	OK(cuMipmappedArrayCreate(&m, &d3, 11)); /* 4 MiB and a third of it, in pages */
	EQ(before - free_bytes(), 6 * MIB);
	OK(cuMipmappedArrayDestroy(m));
	EQ(free_bytes(), before);
	d.Width = 1 << 30;
	EQ(cuArrayCreate_v2(&a, &d), CUDA_ERROR_OUT_OF_MEMORY);
}

void case_content(void)
{
	unsigned char out[4096], in[4096];
	CUdeviceptr a, b;
	CUstream s;
	void *pinned;

	start();
	for (int i = 0; i < 4096; i++)
		out[i] = (unsigned char)(i * 7);
	OK(cuStreamCreate(&s, 1));
	OK(cuMemAlloc_v2(&a, 100 * MIB));
	OK(cuMemAlloc_v2(&b, 4096));
	OK(cuMemcpyHtoDAsync_v2(a + 64, out, 4096, s)); /* pageable: read at the call */
	memset(out, 0, sizeof(out));
	OK(cuMemcpyDtoDAsync_v2(b, a + 64, 4096, s));
	OK(cuMemAllocHost_v2(&pinned, 4096));
	OK(cuMemcpyDtoHAsync_v2(pinned, b, 4096, s));
	OK(cuStreamSynchronize(s));
	for (int i = 0; i < 4096; i++)
		EQ(((unsigned char *)pinned)[i], (unsigned char)(i * 7));
	OK(cuMemsetD16_v2(b, 0xabcd, 2048));
	OK(cuMemcpyDtoH_v2(in, b, 4096));
	EQ(in[4094], 0xcd);
	EQ(in[4095], 0xab);
	OK(cuMemcpyDtoH_v2(in, a + 99 * MIB, 4096)); /* beyond what is kept */
	EQ(in[0], 0);
	EQ(cuMemcpyDtoH_v2(in, b, 8192), CUDA_ERROR_INVALID_VALUE);
}

void case_globals(void)
{
	const char bad[] = "this is no program";
	CUdeviceptr p;
	CUmodule m;
	CUfunction f;
	size_t before, n;

	start();
	before = free_bytes();
	OK(cuModuleLoadData(&m, kernels_ptx));
	EQ(before - free_bytes(), 34 * MIB); /* 32 MiB, and a page for the small one */
	OK(cuModuleGetGlobal_v2(&p, &n, m, "big"));
	EQ(n, 32 * MIB);
	OK(cuModuleGetGlobal_v2(&p, &n, m, "small"));
	EQ(n, 4);
	EQ(cuModuleGetGlobal_v2(&p, &n, m, "none"), CUDA_ERROR_NOT_FOUND);
	EQ(cuModuleGetFunction(&f, m, "none"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleGetFunction(&f, m, "plain"));
	OK(cuModuleUnload(m));
	EQ(free_bytes(), before);
	EQ(cuModuleLoadData(&m, bad), CUDA_ERROR_INVALID_IMAGE);
}

void case_context_end(void)
{
	CUcontext a, b, c;
	CUdeviceptr p;
	CUdevice d;

	start();
	OK(cuCtxCreate_v2(&a, 0, 0));
	OK(cuCtxCreate_v2(&b, 0, 0));
	EQ(free_bytes(), CARD - 3 * CONTEXT);
	OK(cuMemAlloc_v2(&p, 100 * MIB));
	OK(cuCtxDestroy_v2(b));
	OK(cuCtxGetCurrent(&c)); /* what was below it on the stack */
	EQ(c == a, 1);
	EQ(free_bytes(), CARD - 2 * CONTEXT);
	EQ(cuCtxDestroy_v2(b), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxPopCurrent_v2(&c));
	OK(cuCtxDestroy_v2(a));
	EQ(free_bytes(), CARD - CONTEXT);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuCtxGetDevice(&d)); /* the device is still told */
}

void case_heap_limit(void)
{
	const char with_malloc[] = ".version 7.0\n.target sm_70\n.extern .func (.param .b64 r) "
				   "malloc (.param .b64 n);\n";
	size_t before, v;
	CUmodule m;

	start();
	before = free_bytes();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096)); /* 132 * 2048 threads, 3 KiB more each */
	EQ(before - free_bytes(), 792 * MIB);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1032 * MIB));
	EQ(free_bytes(), before); /* nothing calls malloc yet */
	OK(cuModuleLoadData(&m, with_malloc));
	EQ(before - free_bytes(), 1024 * MIB);
	EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, CARD), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuCtxGetLimit(&v, CU_LIMIT_MALLOC_HEAP_SIZE));
	EQ(v, 1032 * MIB);
}

/* Two processes that fork before either has started the driver. */
void case_ipc(void)
{
	CUipcMemHandle h;
	CUdeviceptr p;
	int to[2], back[2], status;
	char go = 1;
	pid_t child;

	TRUE(pipe(to) == 0 && pipe(back) == 0);
	child = fork();
	start();
	if (child == 0) {
		EQ(read(to[0], &h, sizeof(h)), sizeof(h));
		OK(cuIpcOpenMemHandle_v2(&p, h, 1));
		EQ(free_bytes(), CARD - 2 * CONTEXT - 64 * MIB); /* charged once */
		OK(cuIpcCloseMemHandle(p));
		EQ(write(back[1], &go, 1), 1);
		exit(0);
	}
	OK(cuMemAlloc_v2(&p, 64 * MIB));
	OK(cuIpcGetMemHandle(&h, p));
	EQ(cuIpcOpenMemHandle_v2(&p, h, 1), CUDA_ERROR_INVALID_CONTEXT);
	EQ(write(to[1], &h, sizeof(h)), sizeof(h));
	EQ(read(back[0], &go, 1), 1);
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
}
