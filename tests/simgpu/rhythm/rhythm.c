// SPDX-License-Identifier: Apache-2.0
/*
 * rhythm.c - a program that does not keep its queue full, as training and
 * inference do: each step the host launches kernels one after another, each
 * taking it so long, then has other things to do; at some steps it waits for
 * the card. Host time is spent by spinning. Prints one line of JSON.
 */
#define _GNU_SOURCE
#include "../cuda_abi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define MAX_STILL_NS 100000 /* a host that spins and sees the clock jump by more was not running */

static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=ns ns_per_unit=1 unit_param=0\n"
			  ".visible .entry ns(.param .u32 n)\n"
			  "{\n"
			  "	ret;\n"
			  "}\n";

/* All times are in nanoseconds. */
struct rhythm {
	long kernels, wait;
	double kernel, launch, gap;
	double still; /* what the host lost of its processor */
	double at;    /* up to when it has had something to do */
	CUfunction fn;
};

static double now(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void ok(CUresult rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "rhythm: %s: error %d\n", what, rc);
	exit(1);
}

/* The host is at work for so long, more or less; it is late if the last call took longer. */
static void work(struct rhythm *r, double ns)
{
	double t = now(CLOCK_MONOTONIC), last;

	if (t > r->at + MAX_STILL_NS)
		r->at = t;
	r->at += ns * (0.8 + 0.4 * (double)rand() / RAND_MAX);
	while (t < r->at) {
		last = t;
		t = now(CLOCK_MONOTONIC);
		if (t - last > MAX_STILL_NS)
			r->still += t - last;
	}
}

static void step(struct rhythm *r, long n)
{
	unsigned ns = (unsigned)r->kernel;
	void *params[] = {&ns};

	for (long k = 0; k < r->kernels; k++) {
		work(r, r->launch);
		ok(cuLaunchKernel(r->fn, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
		   "cuLaunchKernel");
	}
	if (n % r->wait == 0) {
		ok(cuStreamSynchronize(NULL), "cuStreamSynchronize");
		r->at = now(CLOCK_MONOTONIC);
	}
	work(r, r->gap);
}

int main(int argc, char **argv)
{
	struct rhythm r = {0};
	double start, seconds, first = 0, last = 0;
	long n = 0, steps = 0;
	CUcontext ctx;
	CUmodule m;

	if (argc != 8) {
		fprintf(stderr,
			"usage: rhythm KERNELS KERNEL_US LAUNCH_US GAP_US WAIT START_AT SECONDS\n");
		return 2;
	}
	r.kernels = atol(argv[1]);
	r.kernel = atof(argv[2]) * 1000;
	r.launch = atof(argv[3]) * 1000;
	r.gap = atof(argv[4]) * 1000;
	r.wait = atol(argv[5]);
	start = atof(argv[6]) * 1e9;
	seconds = atof(argv[7]);
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* the end of a wait is seen at once */
	ok(cuInit(0), "cuInit");
	ok(cuDevicePrimaryCtxRetain(&ctx, 0), "cuDevicePrimaryCtxRetain");
	ok(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	ok(cuModuleLoadData(&m, ptx), "cuModuleLoadData");
	ok(cuModuleGetFunction(&r.fn, m, "ns"), "cuModuleGetFunction");
	while (now(CLOCK_REALTIME) < start) {
		const struct timespec ms = {0, 1000000};

		nanosleep(&ms, NULL);
	}
	/* Counted from the end of a wait to the end of one. */
	start = r.at = now(CLOCK_MONOTONIC);
	while (last - start < seconds * 1e9) {
		step(&r, ++n);
		if (n % r.wait)
			continue;
		last = now(CLOCK_MONOTONIC);
		if (!first) {
			if (last - start < 0.2e9)
				continue;
			first = last;
			steps = n;
			r.still = 0;
		}
	}
	printf("{\"rate\":%.3f,\"still\":%.5f}\n", (double)(n - steps) / (last - first) * 1e9,
	       r.still / (last - first));
	return 0;
}
