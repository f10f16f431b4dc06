/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starts.c - starts work on the card in one of the ways that there are, again and again.
 *
 *   starts --way WAY [--libdir DIR] [--secs 1.5]
 *
 * Ways: kernel, thread (into the thread's default stream), config (cuLaunchKernelEx),
 * cooperative, fill, rows (cuMemsetD2D32Async), copy (device to device), unified
 * (cuMemcpyAsync within the card), and every other call that copies within the card (ways[]).
 * Prints how much was done in a second. For the simulated
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
static CUarray array;
static CUcontext ctx;

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

static int plane(void)
{
	CUresult (*move)(const CUDA_MEMCPY2D *, CUstream) = of_way;
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = a,
			   .srcPitch = PITCH,
			   .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			   .dstDevice = b,
			   .dstPitch = PITCH,
			   .WidthInBytes = PITCH,
			   .Height = BYTES / PITCH};

	return move(&c, k.stream) != 0;
}

static int box(void)
{
	CUresult (*move)(const CUDA_MEMCPY3D *, CUstream) = of_way;
	CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = a,
			   .dstMemoryType = CU_MEMORYTYPE_ARRAY,
			   .dstArray = array,
			   .WidthInBytes = PITCH,
			   .Height = BYTES / PITCH,
			   .Depth = 1};

	return move(&c, k.stream) != 0;
}

static int peers(void)
{
	CUresult (*move)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream) = of_way;

	return move(a, ctx, b, ctx, BYTES, k.stream) != 0;
}

static int from_array(void)
{
	CUresult (*move)(CUdeviceptr, CUarray, size_t, size_t) = of_way;

	return move(a, array, 0, BYTES) != 0;
}

static int to_array(void)
{
	CUresult (*move)(CUarray, size_t, CUdeviceptr, size_t) = of_way;

	return move(array, 0, a, BYTES) != 0;
}

static int arrays(void)
{
	CUresult (*move)(CUarray, size_t, CUarray, size_t, size_t) = of_way;

	return move(array, 0, array, BYTES, BYTES) != 0;
}

static int batch(void)
{
	CUresult (*move)(const CUdeviceptr *, const CUdeviceptr *, const size_t *, size_t, void *,
			 size_t *, size_t, CUstream) = of_way;
	CUdeviceptr to[] = {a, a + BYTES / 2}, from[] = {b, b + BYTES / 2};
	size_t sizes[] = {BYTES / 2, BYTES / 2}, first = 0;
	int attributes[8] = {0};

	return move(to, from, sizes, 2, attributes, &first, 1, k.stream) != 0;
}

static int boxes(void)
{
	CUresult (*move)(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream) = of_way;
	CUDA_MEMCPY3D_BATCH_OP op = {.src = {1, .op.ptr = {.ptr = a}},
				     .dst = {CU_MEMCPY_OPERAND_TYPE_ARRAY,
					     .op.array = {array, 0, 0, 0}},
				     .extent = {PITCH, BYTES / PITCH, 1}};

	return move(1, &op, 0, k.stream) != 0;
}

static int attributed(void)
{
	CUresult (*move)(CUdeviceptr, CUdeviceptr, size_t, void *, CUstream) = of_way;
	int attributes[8] = {0};

	return move(a, b, BYTES, attributes, k.stream) != 0;
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
	    {"unified", "cuMemcpyAsync", copy},
	    {"plane", "cuMemcpy2DAsync_v2", plane},
	    {"box", "cuMemcpy3DAsync_v2", box},
	    {"peers", "cuMemcpyPeerAsync", peers},
	    {"peer_box", "cuMemcpy3DPeerAsync", box},
	    {"from_array", "cuMemcpyAtoD_v2", from_array},
	    {"to_array", "cuMemcpyDtoA_v2", to_array},
	    {"arrays", "cuMemcpyAtoA_v2", arrays},
	    {"batch", "cuMemcpyBatchAsync_v2", batch},
	    {"boxes", "cuMemcpy3DBatchAsync_v2", boxes},
	    {"attributed", "cuMemcpyWithAttributesAsync", attributed}};

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", ""), *way = opt(argc, argv, "--way", "");
	double secs = atof(opt(argc, argv, "--secs", "1.5")), began;
	CUresult (*alloc)(CUdeviceptr *, size_t), (*sync)(void), (*current)(CUcontext *);
	CUresult (*make_array)(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = PITCH,
					 .Height = 2 * BYTES / PITCH,
					 .Format = 1,
					 .NumChannels = 1}; /* bytes */
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
	current = needed(cuda, "cuCtxGetCurrent");
	make_array = needed(cuda, "cuArray3DCreate_v2");
	if (!of_way || !alloc || !sync || !current || !make_array || current(&ctx) ||
	    make_array(&array, &shape) || alloc(&a, BYTES) || alloc(&b, BYTES))
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
