/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases.c - a process whose kernels of one function are brief for a while, one at a time, and
 * then, all at once, long: as with a small input and a large one.
 *
 *   phases [--libdir DIR] [--secs 4] [--calm 100] [--long 200] [--long-us 500] [--streams 1]
 *          [--marks 0] [--waits 0] [--naps 0] [--each 0]
 *
 * --calm, --long: so many kernels of 10 us and of --long-us; --streams 2: in two streams in
 * turn. --marks 1: it records an event behind each long one. --waits 20: it lets the stream
 * wait behind each twentieth for an event that has passed. --naps 1: behind each kernel the
 * stream waits for a function of the host, for a millisecond. --each 1: the host waits for each
 * long one. Prints what its kernels took in all, and which part of the time. For the simulated
 * card, on which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"

#define CALM_US 10
#define PAUSE_NS 100000
#define NAP_NS 1000000

struct how {
	int calm, many, marks, waits, naps, each;
	unsigned us;
};

struct calls {
	CUresult (*record)(CUevent, CUstream);
	CUresult (*wait)(CUstream, CUevent, unsigned);
	CUresult (*host)(CUstream, void (*)(void *), void *);
	CUevent passed, mark;
};

static int calls_open(struct calls *c, const char *libdir, CUstream stream)
{
	void *cuda = library(libdir, "libcuda.so.1");
	CUresult (*create)(CUevent *, unsigned) = needed(cuda, "cuEventCreate");

	c->record = needed(cuda, "cuEventRecord");
	c->wait = needed(cuda, "cuStreamWaitEvent");
	c->host = needed(cuda, "cuLaunchHostFunc");
	if (!create || !c->record || !c->wait || !c->host)
		return 2;
	return create(&c->passed, 0) || create(&c->mark, 0) || c->record(c->passed, stream) ? 3 : 0;
}

static int streams_open(CUstream *stream, int n, const char *libdir)
{
	void *cuda = library(libdir, "libcuda.so.1");
	CUresult (*create)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");

	for (int i = 1; i < n; i++)
		if (!create || create(&stream[i], 0))
			return 3;
	return 0;
}

static void nap(void *nothing)
{
	(void)nothing;
	nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Returns what its kernels take, in nanoseconds; 0: a call failed. */
static uint64_t cycle(const struct kernels *k, const struct calls *c, const struct how *h)
{
	for (int i = 0; i < h->calm; i++) {
		if (!kernels_launch(k, 1, CALM_US * 1000 / NS_PER_UNIT) ||
		    (h->naps && c->host(k->stream, nap, NULL)))
			return 0;
		if (!h->naps) {
			if (k->wait_for(k->stream))
				return 0;
			nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
		}
	}
	for (int i = 0; i < h->many; i++)
		if (!kernels_launch(k, 1, h->us * 1000 / NS_PER_UNIT) ||
		    (h->marks && c->record(c->mark, k->stream)) ||
		    (h->waits && (i + 1) % h->waits == 0 && c->wait(k->stream, c->passed, 0)) ||
		    (h->each && k->wait_for(k->stream)))
			return 0;
	if (k->wait_for(k->stream))
		return 0;
	return ((uint64_t)h->calm * CALM_US + (uint64_t)h->many * h->us) * 1000;
}

int main(int argc, char **argv)
{
	const char *libdir = opt(argc, argv, "--libdir", "");
	double secs = atof(opt(argc, argv, "--secs", "4")), began, took;
	int nstreams = atoi(opt(argc, argv, "--streams", "1")) > 1 ? 2 : 1, failed;
	struct how h = {
		.calm = atoi(opt(argc, argv, "--calm", "100")),
		.many = atoi(opt(argc, argv, "--long", "200")),
		.us = (unsigned)atoi(opt(argc, argv, "--long-us", "500")),
		.marks = atoi(opt(argc, argv, "--marks", "0")),
		.waits = atoi(opt(argc, argv, "--waits", "0")),
		.naps = atoi(opt(argc, argv, "--naps", "0")),
		.each = atoi(opt(argc, argv, "--each", "0")),
	};
	CUstream stream[2];
	struct kernels k;
	struct calls c;
	uint64_t done = 0, did;

	if ((failed = kernels_open(&k, libdir)) || (failed = calls_open(&c, libdir, k.stream)) ||
	    (failed = streams_open(stream, nstreams, libdir)))
		return failed;
	stream[0] = k.stream;
	began = now_s();
	for (int i = 0; now_s() - began < secs; i++) {
		k.stream = stream[i % nstreams];
		if (!(did = cycle(&k, &c, &h)))
			return 4;
		done += did;
	}
	took = now_s() - began;
	printf("{\"done_ns\":%llu,\"secs\":%.3f,\"part\":%.4f}\n", (unsigned long long)done, took,
	       (double)done / 1e9 / took);
	return 0;
}
