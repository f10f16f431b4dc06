/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cap.c - a process that keeps the card busy in one way, and counts what that takes the card.
 *
 *   cap [--libdir DIR] [--secs 3] [--what WHAT] [--us 1000] [--bytes 1048576] [--fresh 0] [--contexts 1]
 *
 * WHAT: kernel, in the default stream; or a copy within the card, or a fill, of BYTES (copies[] below),
 * where US is what the card needs for it. --fresh 1: each kernel has a grid that was not seen
 * before. Prints the work done, as a part of the time. For the simulated card, on which it is
 * known how long a kernel takes.
 */
#include <stdlib.h>

#include "kernels.h"

#define CONTEXTS 8

static CUdeviceptr from, to;
static size_t bytes;
static void *cuda;

static CUresult dtod(void)
{
	CUresult (*f)(CUdeviceptr, CUdeviceptr, size_t) = needed(cuda, "cuMemcpyDtoD_v2");

	return f(to, from, bytes);
}

static CUresult unified(void)
{
	CUresult (*f)(CUdeviceptr, CUdeviceptr, size_t) = needed(cuda, "cuMemcpy");

	return f(to, from, bytes);
}

static CUresult dtod_async(void)
{
	CUresult (*f)(CUdeviceptr, CUdeviceptr, size_t, CUstream) =
		needed(cuda, "cuMemcpyDtoDAsync_v2");

	return f(to, from, bytes, NULL);
}

static CUresult fill(void)
{
	static CUresult (*f)(CUdeviceptr, unsigned char, size_t, CUstream);

	if (!f)
		f = needed(cuda, "cuMemsetD8Async");
	return f(to, 1, bytes, NULL);
}

static const struct {
	const char *name;
	CUresult (*copy)(void);
} copies[] = {{"dtod", dtod}, {"unified", unified}, {"dtod_async", dtod_async}, {"fill", fill}};

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", ""),
		   *what = opt(argc, argv, "--what", "kernel");
	unsigned us = (unsigned)atoi(opt(argc, argv, "--us", "1000"));
	bytes = (size_t)atol(opt(argc, argv, "--bytes", "1048576"));
	unsigned contexts = (unsigned)atoi(opt(argc, argv, "--contexts", "1"));
	int fresh = atoi(opt(argc, argv, "--fresh", "0")), failed;
	double secs = atof(opt(argc, argv, "--secs", "3")), began;
	CUresult (*alloc)(CUdeviceptr *, size_t), (*wait_for_all)(void);
	CUresult (*set_current)(CUcontext), (*get_current)(CUcontext *);
	CUresult (*copy)(void) = NULL;
	CUcontext ctx[CONTEXTS];
	struct kernels k[CONTEXTS];
	unsigned done = 0;

	cuda = library(dir, "libcuda.so.1");
	alloc = needed(cuda, "cuMemAlloc_v2");
	wait_for_all = needed(cuda, "cuCtxSynchronize");
	set_current = needed(cuda, "cuCtxSetCurrent");
	get_current = needed(cuda, "cuCtxGetCurrent");
	if (!alloc || !wait_for_all || !set_current || !get_current || !contexts ||
	    contexts > CONTEXTS)
		return 2;
	for (unsigned i = 0; i < contexts; i++) {
		if ((failed = kernels_open(&k[i], dir)) || get_current(&ctx[i]))
			return failed ? failed : 3;
		k[i].stream = NULL;
	}
	for (unsigned i = 0; i < sizeof copies / sizeof *copies; i++)
		if (strcmp(what, copies[i].name) == 0)
			copy = copies[i].copy;
	if (copy ? alloc(&from, bytes) || alloc(&to, bytes) : strcmp(what, "kernel") != 0)
		return 3;
	began = now_s();
	for (; now_s() - began < secs; done++) {
		if (contexts > 1 && set_current(ctx[done % contexts]))
			return 4;
		if (copy ? copy() != 0
			 : !kernels_launch(&k[done % contexts], fresh ? done + 1 : 1,
					   us * 1000 / NS_PER_UNIT))
			return 4;
	}
	for (unsigned i = 0; i < contexts; i++)
		if (set_current(ctx[i]) || wait_for_all())
			return 5;
	printf("{\"part\":%.4f,\"done\":%u,\"secs\":%.3f}\n", done * us / 1e6 / (now_s() - began),
	       done, now_s() - began);
	return 0;
}
