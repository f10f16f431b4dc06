/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paced.c - a process that stays below its limit: rows of short kernels, each waited for,
 * with pauses between them.
 *
 *   paced [--libdir DIR] [--secs 3] [--lengths steady|grow|random]
 *
 * All kernels are of one function with one grid, of 10 us; or of 10 us and, from the
 * middle on, 18 us; or of 4 to 16 us. A row is a few hundred microseconds long, and a
 * pause twice as long as its row. Prints what the kernels took in all. For the simulated card, on
 * which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "../../../libvgpu/cuda_abi.h"
#include "common.h"

#define NS_PER_UNIT 20

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
		fprintf(stderr, "paced: no %s\n", name);
	return *(void **)into == NULL;
}

static unsigned units(const char *lengths, double part)
{
	if (strcmp(lengths, "random") == 0)
		return 200 + (unsigned)rand() % 601;
	return strcmp(lengths, "grow") == 0 && part > 0.5 ? 900 : 500;
}

int main(int argc, char **argv)
{
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	const char *lengths = opt(argc, argv, "--lengths", "steady");
	double secs = atof(opt(argc, argv, "--secs", "3")), began;
	uint64_t done = 0;
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
		int rows = 20 + rand() % 21;
		uint64_t row = 0;

		for (int i = 0; i < rows; i++) {
			unsigned n = units(lengths, (now_s() - began) / secs);
			void *params[] = {&n};

			if (launch(work, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL))
				return 4;
			row += (uint64_t)n * NS_PER_UNIT;
		}
		if (wait_for(stream))
			return 5;
		done += row;
		nanosleep(&(struct timespec){.tv_nsec = (long)(2 * row)}, NULL);
	} while (now_s() - began < secs);
	printf("{\"done_ns\":%llu,\"secs\":%.3f}\n", (unsigned long long)done, now_s() - began);
	return 0;
}
