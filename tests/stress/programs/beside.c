/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside.c - kernels in several streams that run beside each other.
 *
 *   beside --libdir DIR [--streams 4] [--us 1000] [--each 1] [--secs 2]
 *
 * Launches EACH kernels of US microseconds in each stream, in turn, waits for all, and begins
 * again. Prints the seconds in which any kernel ran, and the sum of all kernels. For the libcuda of
 * wide.c.
 */
#include <stdint.h>
#include <stdlib.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

int main(int argc, char **argv)
{
	unsigned streams = (unsigned)atoi(opt(argc, argv, "--streams", "4"));
	unsigned us = (unsigned)atoi(opt(argc, argv, "--us", "1000"));
	unsigned each = (unsigned)atoi(opt(argc, argv, "--each", "1"));
	double until, busy, sum, secs = atof(opt(argc, argv, "--secs", "2"));
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	CUresult (*init)(unsigned), (*create)(CUcontext *, unsigned, CUdevice),
		(*wait_for)(CUstream);
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, CUstream, void **, void **);
	double (*wide_busy)(double *);
	CUcontext ctx;

	if (!cuda)
		return 2;
	init = dlsym(cuda, "cuInit");
	create = dlsym(cuda, "cuCtxCreate_v2");
	wait_for = dlsym(cuda, "cuStreamSynchronize");
	launch = dlsym(cuda, "cuLaunchKernel");
	wide_busy = dlsym(cuda, "wide_busy");
	if (!init || !create || !wait_for || !launch || !wide_busy || init(0) || create(&ctx, 0, 0))
		return 3;
	for (until = now_s() + secs; now_s() < until;) {
		for (unsigned i = 0; i < each * streams; i++)
			if (launch((CUfunction)(uintptr_t)0x1000, us, 1, 1, 32, 1, 1, 0,
				   (CUstream)(uintptr_t)(3 + i % streams), NULL, NULL))
				return 4;
		for (unsigned i = 0; i < streams; i++)
			wait_for((CUstream)(uintptr_t)(3 + i));
	}
	busy = wide_busy(&sum);
	printf("{\"busy\":%.4f,\"sum\":%.4f}\n", busy, sum);
	return 0;
}
