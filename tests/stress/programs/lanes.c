/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes.c - kernels of one more context, when a process has used many contexts or streams.
 *
 *   lanes --contexts N [--turns 1] [--held M] [--us 100000] [--row 1] [--secs 4]
 *
 * The N contexts launch a kernel each in turn, so often; then each launches one in each of M
 * streams, which wait for a function of the host up to the end. Then the last context launches rows of kernels and waits for
 * each row. Prints the part of the time in which these were on the card, what they took, how many
 * there were, and of the library's events how many it recorded for them, and how many there are
 * at the end. For the simulated card.
 */
#include <stdlib.h>

#include "held.h"
#include "kernels.h"

static unsigned records, events;

static void told(const char *call)
{
	if (strcmp(call, "cuEventRecord") == 0)
		__atomic_add_fetch(&records, 1, __ATOMIC_RELAXED);
	else if (strcmp(call, "cuEventCreate") == 0)
		__atomic_add_fetch(&events, 1, __ATOMIC_RELAXED);
	else if (strncmp(call, "cuEventDestroy", strlen("cuEventDestroy")) == 0)
		__atomic_sub_fetch(&events, 1, __ATOMIC_RELAXED);
}

#define MOST 64
static struct kernels in[MOST];
static CUcontext ctx[MOST];
static CUresult (*set_current)(CUcontext), (*get_current)(CUcontext *);
static CUresult (*create)(CUstream *, unsigned);
static CUresult (*host)(CUstream, void (*)(void *), void *);

static int find(void *cuda)
{
	set_current = needed(cuda, "cuCtxSetCurrent");
	get_current = needed(cuda, "cuCtxGetCurrent");
	create = needed(cuda, "cuStreamCreate");
	host = needed(cuda, "cuLaunchHostFunc");
	return set_current && get_current && create && host ? 0 : 2;
}

static int launch_in_turn(int contexts)
{
	for (int i = 0; i < contexts; i++)
		if (set_current(ctx[i]) || !kernels_launch(&in[i], 1, 1) ||
		    in[i].wait_for(in[i].stream))
			return 4;
	return 0;
}

/* Uses so many contexts, and so many streams of each, which are held. */
static int use(int contexts, int turns, int held)
{
	int r = contexts > MOST ? 2 : 0;

	for (int i = 0; i < contexts && !r; i++)
		r = kernels_open(&in[i], "") || get_current(&ctx[i]) ? 3 : 0;
	for (int i = 0; i < turns && !r; i++)
		r = launch_in_turn(contexts);
	for (int i = 0; i < contexts * held && !r; i++) {
		struct kernels k = in[i / held];

		if (set_current(ctx[i / held]) || create(&k.stream, 1) ||
		    host(k.stream, hold, NULL) || !kernels_launch(&k, 1, 1))
			r = 4;
	}
	return r;
}

int main(int argc, char **argv)
{
	int contexts = atoi(opt(argc, argv, "--contexts", "1"));
	int held = atoi(opt(argc, argv, "--held", "0")), row = atoi(opt(argc, argv, "--row", "1"));
	unsigned us = (unsigned)atoi(opt(argc, argv, "--us", "100000")), n = 0;
	double secs = atof(opt(argc, argv, "--secs", "4")), began, took;
	void *cuda = library("", "libcuda.so.1");
	void (*subscribe)(void (*)(const char *)) = needed(cuda, "simgpu_subscribe");
	struct kernels k;
	int r = subscribe ? find(cuda) : 2;

	if (r)
		return r;
	subscribe(told);
	r = use(contexts, atoi(opt(argc, argv, "--turns", "1")), held);
	if (r || (r = kernels_open(&k, "")))
		return r;
	__atomic_store_n(&records, 0, __ATOMIC_RELAXED);
	began = now_s();
	do {
		for (int i = 0; i < row; i++, n++)
			if (!kernels_launch(&k, 2, us * (1000 / NS_PER_UNIT)))
				return 5;
		if (k.wait_for(k.stream))
			return 6;
		took = now_s() - began;
	} while (took < secs);
	subscribe(NULL);
	let_go();
	printf("{\"part\":%.3f,\"done_ns\":%.0f,\"launches\":%u,\"records\":%u,\"events\":%d}\n",
	       n * us / 1e6 / took, n * us * 1e3, n, records, (int)events);
	return 0;
}
