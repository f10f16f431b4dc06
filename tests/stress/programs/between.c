/* SPDX-License-Identifier: Apache-2.0 */
/*
 * between.c - a process with something else between its kernels, and a host that is far ahead.
 *
 *   between [--libdir DIR] [--secs 4] [--what htod] [--us 200]
 *
 * htod, dtoh, unified: a copy over the bus of 8 MiB before each kernel; pipe: kernels in two
 * streams in turn, each of which waits for the one before in the other. Prints what its kernels
 * took in all, and which part of the time. For the simulated card, on which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"

#define AHEAD 20 /* kernels, or pairs of them */
#define COPY_BYTES (8u << 20)

struct calls {
	CUresult (*htod)(CUdeviceptr, const void *, size_t, CUstream);
	CUresult (*dtoh)(void *, CUdeviceptr, size_t, CUstream);
	CUresult (*unified)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
	CUresult (*record)(CUevent, CUstream);
	CUresult (*wait)(CUstream, CUevent, unsigned);
	CUstream other;
	CUevent done, others;
	CUdeviceptr card;
	void *host;
};

static int calls_open(struct calls *c, const char *libdir)
{
	void *cuda = library(libdir, "libcuda.so.1");
	CUresult (*stream)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");
	CUresult (*event)(CUevent *, unsigned) = needed(cuda, "cuEventCreate");
	CUresult (*alloc)(CUdeviceptr *, size_t) = needed(cuda, "cuMemAlloc_v2");
	CUresult (*pinned)(void **, size_t) = needed(cuda, "cuMemAllocHost_v2");

	c->htod = needed(cuda, "cuMemcpyHtoDAsync_v2");
	c->dtoh = needed(cuda, "cuMemcpyDtoHAsync_v2");
	c->unified = needed(cuda, "cuMemcpyAsync");
	c->record = needed(cuda, "cuEventRecord");
	c->wait = needed(cuda, "cuStreamWaitEvent");
	if (!stream || !event || !alloc || !pinned || !c->htod || !c->dtoh || !c->unified ||
	    !c->record || !c->wait)
		return 2;
	return stream(&c->other, 1) || event(&c->done, 0) || event(&c->others, 0) ||
			       alloc(&c->card, COPY_BYTES) || pinned(&c->host, COPY_BYTES)
		       ? 3
		       : 0;
}

static CUresult copy(const struct calls *c, const char *what, CUstream stream)
{
	if (strcmp(what, "htod") == 0)
		return c->htod(c->card, c->host, COPY_BYTES, stream);
	if (strcmp(what, "dtoh") == 0)
		return c->dtoh(c->host, c->card, COPY_BYTES, stream);
	if (strcmp(what, "unified") == 0)
		return c->unified(c->card, (CUdeviceptr)(uintptr_t)c->host, COPY_BYTES, stream);
	return CUDA_SUCCESS;
}

/* A kernel in the other stream, between those of the first. */
static int in_turn(const struct kernels *k, const struct calls *c, unsigned units)
{
	struct kernels there = *k;

	there.stream = c->other;
	return !c->record(c->done, k->stream) && !c->wait(c->other, c->done, 0) &&
	       kernels_launch(&there, 2, units) && !c->record(c->others, c->other) &&
	       !c->wait(k->stream, c->others, 0);
}

int main(int argc, char **argv)
{
	const char *libdir = opt(argc, argv, "--libdir", ""),
		   *what = opt(argc, argv, "--what", "htod");
	double secs = atof(opt(argc, argv, "--secs", "4")), began, took;
	unsigned us = (unsigned)atoi(opt(argc, argv, "--us", "200")),
		 units = us * 1000 / NS_PER_UNIT;
	int pipe = strcmp(what, "pipe") == 0, failed;
	struct kernels k;
	struct calls c;
	uint64_t done = 0;

	if ((failed = kernels_open(&k, libdir)) || (failed = calls_open(&c, libdir)))
		return failed;
	began = now_s();
	while (now_s() - began < secs) {
		for (int i = 0; i < AHEAD; i++)
			if (copy(&c, what, k.stream) || !kernels_launch(&k, 1, units) ||
			    (pipe && !in_turn(&k, &c, units)))
				return 4;
		if (k.wait_for(k.stream))
			return 5;
		done += (uint64_t)AHEAD * (1 + pipe) * us * 1000;
	}
	took = now_s() - began;
	printf("{\"done_ns\":%llu,\"secs\":%.3f,\"part\":%.4f}\n", (unsigned long long)done, took,
	       (double)done / 1e9 / took);
	return 0;
}
