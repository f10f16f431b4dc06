/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - kernels of a given length on the simulated card, which knows how long they are. */
#ifndef VGPU_KERNELS_H
#define VGPU_KERNELS_H

#include <stdint.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define NS_PER_UNIT 20

struct kernels {
	CUresult (*wait_for)(CUstream);
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, CUstream, void **, void **);
	CUstream stream;
	CUfunction work;
};

static inline void *needed(void *cuda, const char *name)
{
	void *found = cuda ? dlsym(cuda, name) : NULL;

	if (!found)
		fprintf(stderr, "the driver has no %s\n", name);
	return found;
}

/* Opens card 0. Returns 0, or an exit status. */
static inline int kernels_open(struct kernels *k, const char *libdir)
{
	static const char ptx[] = ".version 7.0\n"
				  ".target sm_70\n"
				  ".address_size 64\n"
				  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
				  ".visible .entry work(.param .u32 units) { ret; }\n";
	void *cuda = library(libdir, "libcuda.so.1");
	CUresult (*init)(unsigned) = needed(cuda, "cuInit");
	CUresult (*create)(CUcontext *, unsigned, CUdevice) = needed(cuda, "cuCtxCreate_v2");
	CUresult (*create_stream)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");
	CUresult (*load)(CUmodule *, const void *) = needed(cuda, "cuModuleLoadData");
	CUresult (*function)(CUfunction *, CUmodule, const char *) =
		needed(cuda, "cuModuleGetFunction");
	CUcontext ctx;
	CUmodule module;

	k->wait_for = needed(cuda, "cuStreamSynchronize");
	k->launch = needed(cuda, "cuLaunchKernel");
	if (!init || !create || !create_stream || !load || !function || !k->wait_for || !k->launch)
		return 2;
	if (init(0) || create(&ctx, 0, 0) || create_stream(&k->stream, 0) || load(&module, ptx) ||
	    function(&k->work, module, "work"))
		return 3;
	return 0;
}

/* Launches a kernel of so many units. grid: a number of blocks, which changes nothing but what
 * the kernel counts as. Returns 0 when that failed. */
static inline int kernels_launch(const struct kernels *k, unsigned grid, unsigned units)
{
	void *params[] = {&units};

	return k->launch(k->work, grid, 1, 1, 32, 1, 1, 0, k->stream, params, NULL) == 0;
}
#endif
