/* SPDX-License-Identifier: Apache-2.0 */
/*
 * captured.c - allocations beside a capture, and what is charged for them.
 *
 *   captured beside|inside|legacy [--libdir DIR] [--later-ms 0]
 *
 * Begins a relaxed capture of a blocking stream. beside: takes 1 GiB at a time in the
 * thread's own stream, which is not captured, until refused. inside: takes 3 GiB in the
 * thread's own stream, which is captured itself, by the same call. legacy: takes 3 GiB in
 * the legacy stream, which CUDA refuses beside such a capture. One JSON line: GiB that were
 * granted, the last error, MiB that CUDA says are used when the capture has ended beyond
 * those before it, and so long after its end.
 */
#include <stdint.h>
#include <stdlib.h>

#include "calls.h"

static long used_mib(void)
{
	size_t left = 0, total = 0;

	return TRY(cuMemGetInfo_v2, &left, &total) ? -1 : (long)((total - left) >> 20);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int inside = strcmp(how, "inside") == 0, legacy = strcmp(how, "legacy") == 0, n = 0;
	size_t bytes = inside || legacy ? 3ull << 30 : 1ull << 30;
	CUresult r = 0, odd;
	CUstream stream;
	CUgraph graph;
	CUdeviceptr p;
	CUcontext ctx;
	long before;

	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	if (!cuda || TRY(cuInit, 0u) || TRY(cuCtxCreate_v2, &ctx, 0u, 0) ||
	    TRY(cuStreamCreate, &stream, 0u))
		return 3;
	before = used_mib();
	if (inside)
		stream = CU_STREAM_PER_THREAD;
	if (TRY(cuStreamBeginCapture_v2, stream, 2))
		return 4;
	while (n < 20 && !r) {
		r = legacy ? TRY(cuMemAllocAsync, &p, bytes, (CUstream)NULL)
			   : TRY(cuMemAllocAsync_ptsz, &p, bytes, (CUstream)NULL);
		n += r == 0;
		if (inside)
			break;
	}
	odd = TRY(cuStreamEndCapture, stream, &graph);
	usleep(1000 * (unsigned)atoi(opt(argc, argv, "--later-ms", "0")));
	printf("{\"granted\":%lu,\"last\":%d,\"used_mib\":%ld,\"ended\":%d}\n",
	       (unsigned long)(n * bytes >> 30), r, used_mib() - before, odd);
	return 0;
}
