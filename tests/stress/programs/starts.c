/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starts.c - starts work on the card in one of the ways that there are, again and again.
 *
 *   starts --way WAY [--libdir DIR] [--secs 1.5]
 *
 * Ways: kernel, thread (into the thread's default stream), config (cuLaunchKernelEx),
 * cooperative, fill, rows (cuMemsetD2D32Async), copy (device to device), unified
 * (cuMemcpyAsync within the card). Prints how much was done in a second. For the simulated
 * card, on which that is steady.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"

#define UNITS (2000000 / NS_PER_UNIT)
#define BYTES \
	(256u << 10) /* on a card that copies slowly: the simulated driver moves bytes itself */
#define PITCH 4096u

typedef CUresult launch_fn(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, CUstream, void **, void **);

static struct kernels k;
static void *cuda, *of_way;
static CUdeviceptr a, b;

static int kernel(void)
{
	return !kernels_launch(&k, 1, UNITS);
}

static int in_thread(void)
{
	unsigned units = UNITS;
	void *params[] = {&units};

	return (*(launch_fn *)of_way)(k.work, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) != 0;
}

static int config(void)
{
	unsigned units = UNITS;
	void *params[] = {&units};
	CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, k.stream, NULL, 0};
	CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **) = of_way;

	return launch(&c, k.work, params, NULL) != 0;
}

static int cooperative(void)
{
	unsigned units = UNITS;
	void *params[] = {&units};
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, CUstream, void **) = of_way;

	return launch(k.work, 1, 1, 1, 32, 1, 1, 0, k.stream, params) != 0;
}

static int fill(void)
{
	CUresult (*set)(CUdeviceptr, unsigned, size_t, CUstream) = of_way;

	return set(a, 7, BYTES / sizeof(unsigned), k.stream) != 0;
}

static int rows(void)
{
	CUresult (*set)(CUdeviceptr, size_t, unsigned, size_t, size_t, CUstream) = of_way;

	return set(a, PITCH, 7, PITCH / sizeof(unsigned), BYTES / PITCH, k.stream) != 0;
}

static int copy(void)
{
	CUresult (*move)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = of_way;

	return move(a, b, BYTES, k.stream) != 0;
}

static const struct {
	const char *name, *symbol;
	int (*start)(void);
} ways[] = {{"kernel", "cuLaunchKernel", kernel},
	    {"thread", "cuLaunchKernel_ptsz", in_thread},
	    {"config", "cuLaunchKernelEx", config},
	    {"cooperative", "cuLaunchCooperativeKernel", cooperative},
	    {"fill", "cuMemsetD32Async", fill},
	    {"rows", "cuMemsetD2D32Async", rows},
	    {"copy", "cuMemcpyDtoDAsync_v2", copy},
	    {"unified", "cuMemcpyAsync", copy}};

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", ""), *way = opt(argc, argv, "--way", "");
	double secs = atof(opt(argc, argv, "--secs", "1.5")), began;
	CUresult (*alloc)(CUdeviceptr *, size_t), (*sync)(void);
	int failed = kernels_open(&k, dir);
	unsigned done = 0, i = 0;

	while (i < sizeof ways / sizeof *ways && strcmp(way, ways[i].name) != 0)
		i++;
	if (failed || i == sizeof ways / sizeof *ways)
		return failed ? failed : 2;
	cuda = library(dir, "libcuda.so.1");
	of_way = needed(cuda, ways[i].symbol);
	alloc = needed(cuda, "cuMemAlloc_v2");
	sync = needed(cuda, "cuCtxSynchronize");
	if (!of_way || !alloc || !sync || alloc(&a, BYTES) || alloc(&b, BYTES))
		return 3;
	began = now_s();
	do {
		for (int n = 0; n < 8; n++, done++)
			if (ways[i].start())
				return 4;
		if (sync())
			return 5;
	} while (now_s() - began < secs);
	printf("{\"per_second\":%.2f}\n", done / (now_s() - began));
	return 0;
}
