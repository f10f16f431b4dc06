/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retains.c - two threads retain the primary context. The first one's call takes long, and the second
 * launches before that returns.
 *
 *   retains CACHE [--libdir DIR]
 *
 * Prints a line of JSON: how many contexts the process counts in its cache.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>

#include "../../../libvgpu/region.h"
#include "calls.h"

static void *slow(void *unused)
{
	CUcontext ctx;

	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	return unused;
}

static void launches(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				  "// simgpu: entry=work ns_per_unit=20\n"
				  ".visible .entry work() { ret; }\n";
	CUcontext ctx;
	CUmodule module;
	CUfunction work;

	CALL(cuDevicePrimaryCtxRetain, &ctx, 0);
	CALL(cuCtxSetCurrent, ctx);
	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleGetFunction, &work, module, "work");
	CALL(cuLaunchKernel, work, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)NULL, NULL, NULL);
	CALL(cuCtxSynchronize);
}

static unsigned contexts(const char *cache)
{
	int fd = open(cache, O_RDONLY | O_CLOEXEC);
	struct vgpu_slot slot;

	for (off_t at = VGPU_SLOTS_OFFSET; pread(fd, &slot, sizeof slot, at) == sizeof slot;
	     at += sizeof slot)
		if (slot.owner && slot.pid == (uint32_t)getpid())
			return slot.card[0].contexts;
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	if (!cuda || argc < 2)
		return 3;
	CALL(cuInit, 0u);
	pthread_create(&thread, NULL, slow, NULL);
	usleep(100000);
	launches();
	pthread_join(thread, NULL);
	printf("{\"contexts\":%u}\n", contexts(argv[1]));
	return 0;
}
