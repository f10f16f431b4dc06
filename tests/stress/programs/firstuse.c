/* SPDX-License-Identifier: Apache-2.0 */
/*
 * firstuse.c - code that comes with its first use, and what further uses cost.
 *
 *   firstuse [--libdir DIR] [--calls 2000]
 *
 * A library with a variable of 32 MiB is loaded, which takes nothing; its first use takes
 * the memory. Asks for its module, its kernel and the variable again and again; unloads
 * the library, and does all this some more times, for a later one may get the handles of
 * one that has gone. One JSON line: what the process is told is in use, in MiB, before,
 * after the first use, after the unload, and the least after the first use of a later
 * load; nanoseconds of one further call (the median); and how often this process announced
 * a change of its memory in all further calls, by the cache in
 * CUDA_DEVICE_MEMORY_SHARED_CACHE: each is a look at the card's free memory. anew is the
 * same for two calls of each kind after another context has ended, and again after a
 * reference to the primary context has.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "../../../libvgpu/region.h"
#include "common.h"

#define KINDS 3
#define ROUNDS 60

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .global .align 8 .b8 big[33554432];\n"
			  ".visible .entry one()\n{\nret;\n}\n";

static CUresult (*init)(unsigned);
static CUresult (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
static CUresult (*release)(CUdevice);
static CUresult (*create)(CUcontext *, unsigned, CUdevice), (*destroy)(CUcontext);
static CUresult (*get_info)(size_t *, size_t *);
static CUresult (*load)(CUlibrary *, const void *, void *, void *, unsigned, void *, void **,
			unsigned);
static CUresult (*unload)(CUlibrary);
static CUresult (*get_kernel)(CUkernel *, CUlibrary, const char *);
static CUresult (*get_function)(CUfunction *, CUkernel);
static CUresult (*get_module)(CUmodule *, CUlibrary);
static CUresult (*get_global)(CUdeviceptr *, size_t *, CUlibrary, const char *);

static int find(void *cuda, const char *name, void *into)
{
	*(void **)into = dlsym(cuda, name);
	if (!*(void **)into)
		fprintf(stderr, "firstuse: no %s\n", name);
	return *(void **)into == NULL;
}

static long used_mib(void)
{
	size_t free_bytes, total;

	return get_info(&free_bytes, &total) ? -1 : (long)((total - free_bytes) >> 20);
}

/* The changes that all processes in the cache announced; 0 where there is none. */
static uint64_t announced(void)
{
	const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	const struct vgpu_slot *slots;
	uint64_t sum = 0;
	char *p;

	if (fd < 0)
		return 0;
	p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return 0;
	slots = (const void *)(p + VGPU_SLOTS_OFFSET);
	for (int i = 0; i < VGPU_MAX_SLOTS; i++)
		sum += slots[i].mem_begun;
	munmap(p, VGPU_CACHE_SIZE);
	return sum;
}

static int use(int kind, CUlibrary library, CUkernel kernel)
{
	CUfunction function;
	CUmodule module;
	CUdeviceptr variable;
	size_t size;

	switch (kind) {
	case 0: /* first: what it takes is the library's, and goes with it at once */
		return get_module(&module, library);
	case 1:
		return get_function(&function, kernel);
	default:
		return get_global(&variable, &size, library, "big");
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Another context may now get the handles of one that ended. */
static int end_context(int way, CUcontext current)
{
	CUcontext other;

	if (way == 0)
		return create(&other, 0, 0) || destroy(other) || set_current(current);
	return retain(&other, 0) || release(0);
}

int main(int argc, char **argv)
{
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	int calls = atoi(opt(argc, argv, "--calls", "2000"));
	double *took = calls > 0 ? calloc((size_t)calls, sizeof *took) : NULL, median[KINDS];
	uint64_t before, looks = 0, anew = 0;
	long used[2 * ROUNDS], least = 0;
	CUlibrary lib;
	CUkernel kernel;
	CUcontext ctx;

	if (!took || !cuda || find(cuda, "cuInit", &init) ||
	    find(cuda, "cuDevicePrimaryCtxRetain", &retain) ||
	    find(cuda, "cuDevicePrimaryCtxRelease_v2", &release) ||
	    find(cuda, "cuCtxSetCurrent", &set_current) || find(cuda, "cuCtxCreate_v2", &create) ||
	    find(cuda, "cuCtxDestroy_v2", &destroy) || find(cuda, "cuMemGetInfo_v2", &get_info) ||
	    find(cuda, "cuLibraryLoadData", &load) || find(cuda, "cuLibraryUnload", &unload) ||
	    find(cuda, "cuLibraryGetKernel", &get_kernel) ||
	    find(cuda, "cuKernelGetFunction", &get_function) ||
	    find(cuda, "cuLibraryGetModule", &get_module) ||
	    find(cuda, "cuLibraryGetGlobal", &get_global))
		return 2;
	if (init(0) || retain(&ctx, 0) || set_current(ctx))
		return 3;
	for (int round = 0; round < ROUNDS; round++) {
		if (load(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0) ||
		    get_kernel(&kernel, lib, "one"))
			return 4;
		used[2 * round] = used_mib();
		for (int kind = 0; kind < KINDS; kind++)
			if (use(kind, lib, kernel))
				return 5;
		used[2 * round + 1] = used_mib();
		before = announced();
		for (int kind = 0; kind < KINDS; kind++) {
			for (int i = 0; i < calls; i++) {
				took[i] = now_s();
				if (use(kind, lib, kernel))
					return 6;
				took[i] = 1e9 * (now_s() - took[i]);
			}
			qsort(took, (size_t)calls, sizeof *took, ascending);
			median[kind] = took[calls / 2];
		}
		looks += announced() - before;
		for (int way = 0; round == 0 && way < 2; way++) {
			if (end_context(way, ctx))
				return 8;
			before = announced();
			for (int kind = 0; kind < KINDS; kind++)
				if (use(kind, lib, kernel) || use(kind, lib, kernel))
					return 9;
			anew += announced() - before;
		}
		if (unload(lib))
			return 7;
	}
	for (int round = 1; round < ROUNDS; round++)
		if (round == 1 || used[2 * round + 1] < least)
			least = used[2 * round + 1];
	printf("{\"bench\":\"firstuse\",\"before_mib\":%ld,\"first_mib\":%ld,\"unloaded_mib\":%ld,"
	       "\"again_mib\":%ld,\"calls\":%d,\"looks\":%llu,\"anew\":%llu,\"module_ns\":%.0f,"
	       "\"function_ns\":%.0f,\"variable_ns\":%.0f}\n",
	       used[0], used[1], used[2], least, ROUNDS * KINDS * calls, (unsigned long long)looks,
	       (unsigned long long)anew, median[0], median[1], median[2]);
	return 0;
}
