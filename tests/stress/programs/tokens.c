/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.c - a process that makes one token after another, as inference does: steps of 60
 * kernels of 2 to 8 us, each step waited for. The host takes longer for a step than the
 * card: it launches twelve kernels in a row, then computes.
 *
 *   tokens [--libdir DIR] [--secs 3]
 *
 * Kernels of several lengths have grids of their own. Prints the steps per second, and what
 * the kernels took in all. For the simulated card, on which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "../../../libvgpu/cuda_abi.h"
#include "common.h"

#define NS_PER_UNIT 20
#define KERNELS 60
#define ROW 12
#define LAUNCH_S 2e-6
#define COMPUTE_S 110e-6
#define END_S 150e-6

static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
			  ".visible .entry work(.param .u32 units) { ret; }\n";

static CUresult (*init)(unsigned), (*wait_for)(CUstream);
static CUresult (*create)(CUcontext *, unsigned, CUdevice);
static CUresult (*create_stream)(CUstream *, unsigned);
static CUresult (*load)(CUmodule *, const void *);
static CUresult (*function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  unsigned, CUstream, void **, void **);

static int find(void *cuda, const char *name, void *into)
{
	*(void **)into = dlsym(cuda, name);
	if (!*(void **)into)
		fprintf(stderr, "tokens: no %s\n", name);
	return *(void **)into == NULL;
}

static void compute(double s)
{
	double end = now_s() + s;

	while (now_s() < end)
		;
}

/* Returns what its kernels take, in nanoseconds; 0: a call failed. */
static uint64_t step(CUfunction work, CUstream stream)
{
	static const unsigned us[] = {2, 3, 3, 5, 8, 3, 2, 4, 6, 4};
	const unsigned kinds = sizeof(us) / sizeof(*us);
	uint64_t took = 0;

	for (unsigned i = 0; i < KERNELS; i++) {
		unsigned units = us[i % kinds] * 1000 / NS_PER_UNIT;
		void *params[] = {&units};

		compute(i % ROW ? LAUNCH_S : COMPUTE_S);
		if (launch(work, 1 + i % kinds, 1, 1, 32, 1, 1, 0, stream, params, NULL))
			return 0;
		took += (uint64_t)units * NS_PER_UNIT;
	}
	if (wait_for(stream))
		return 0;
	compute(END_S);
	return took;
}

int main(int argc, char **argv)
{
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	double secs = atof(opt(argc, argv, "--secs", "3")), began;
	uint64_t done = 0, steps = 0, took;
	CUcontext ctx;
	CUstream stream;
	CUmodule module;
	CUfunction work;

	if (!cuda || find(cuda, "cuInit", &init) || find(cuda, "cuCtxCreate_v2", &create) ||
	    find(cuda, "cuStreamCreate", &create_stream) ||
	    find(cuda, "cuStreamSynchronize", &wait_for) || find(cuda, "cuModuleLoadData", &load) ||
	    find(cuda, "cuModuleGetFunction", &function) || find(cuda, "cuLaunchKernel", &launch))
		return 2;
	if (init(0) || create(&ctx, 0, 0) || create_stream(&stream, 0) || load(&module, ptx) ||
	    function(&work, module, "work"))
		return 3;
	began = now_s();
	do {
		took = step(work, stream);
		if (!took)
			return 4;
		done += took;
		steps++;
	} while (now_s() - began < secs);
	printf("{\"done_ns\":%llu,\"steps_per_s\":%.1f,\"secs\":%.3f}\n", (unsigned long long)done,
	       (double)steps / (now_s() - began), now_s() - began);
	return 0;
}
