/* SPDX-License-Identifier: Apache-2.0 */
/*
 * undone.c - a program destroys a full stream, or its context, while the library waits for room in the
 * stream.
 *
 *   undone stream|context
 *
 * The stream has a kernel of 200 ms and small copies behind it, up to each length around its size. Killed
 * after 30 s; prints how many rounds there were, and how long the stream or context took to end in each.
 */
#include <time.h>
#include <unistd.h>

#include "calls.h"

#define ROOM 1024 /* entries of a stream */
#define ROUNDS 8
#define NS_PER_UNIT 20

static CUfunction work;

static void open_kernel(CUcontext *ctx)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
				  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
				  ".visible .entry work(.param .u32 units) { ret; }\n";
	CUmodule module;

	CALL(cuCtxCreate_v2, ctx, 0u, 0);
	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleGetFunction, &work, module, "work");
}

static void launch(CUstream stream, unsigned grid, unsigned us)
{
	unsigned units = us * 1000 / NS_PER_UNIT;
	void *params[] = {&units};

	CALL(cuLaunchKernel, work, grid, 1u, 1u, 32u, 1u, 1u, 0u, stream, params, (void **)NULL);
}

/* Returns the milliseconds that the end of the stream or context took. */
static double one_round(int whole, unsigned entries)
{
	static char host[16];
	CUcontext ctx;
	CUstream stream;
	CUdeviceptr memory;
	struct timespec began, ended;

	open_kernel(&ctx);
	CALL(cuMemAlloc_v2, &memory, (size_t)4096);
	CALL(cuStreamCreate, &stream, 0u);
	for (int i = 0; i < 20; i++) /* its cost is known then */
		launch(stream, 1, 10);
	CALL(cuStreamSynchronize, stream);
	launch(stream, 2, 200000);
	for (unsigned i = 0; i < ROOM - ROUNDS; i++)
		CALL(cuMemcpyHtoDAsync_v2, memory, (const void *)host, sizeof host, stream);
	launch(stream, 1, 10);
	for (unsigned i = ROOM - ROUNDS; i < entries; i++)
		CALL(cuMemcpyHtoDAsync_v2, memory, (const void *)host, sizeof host, stream);
	usleep(10000); /* the library may record an event */
	clock_gettime(CLOCK_MONOTONIC, &began);
	if (whole)
		CALL(cuCtxDestroy_v2, ctx);
	else
		CALL(cuStreamDestroy_v2, stream);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	usleep(10000);
	if (!whole)
		CALL(cuCtxDestroy_v2, ctx);
	return (double)(ended.tv_sec - began.tv_sec) * 1e3 +
	       (double)(ended.tv_nsec - began.tv_nsec) / 1e6;
}

int main(int argc, char **argv)
{
	int whole = argc > 1 && strcmp(argv[1], "context") == 0, rounds = 0;
	double ms[ROUNDS];

	cuda = library("", "libcuda.so.1");
	if (!cuda)
		return 3;
	CALL(cuInit, 0u);
	alarm(30);
	for (unsigned entries = ROOM - ROUNDS; entries < ROOM; entries++, rounds++)
		ms[rounds] = one_round(whole, entries);
	printf("{\"rounds\":%d,\"ms\":[", rounds);
	for (int i = 0; i < rounds; i++)
		printf("%s%.3f", i ? "," : "", ms[i]);
	printf("]}\n");
	return 0;
}
