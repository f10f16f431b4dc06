/* SPDX-License-Identifier: Apache-2.0 */
/*
 * joins.c - streams that join a capture of another one right after their own work.
 *
 *   joins [--libdir DIR] [--rounds 20]
 *
 * Each round begins a relaxed capture of one stream, launches in another, waits 3 ms, and lets the
 * other join the capture by an event, where it launches once more; 50 ms later the capture ends.
 * Records of events by other threads than the program's take 20 ms. Nothing that this program does
 * is a reason for a capture to fail. Prints how many did, and how many records of others there were.
 * For the simulated card.
 */
#include <pthread.h>
#include <stdlib.h>

#include "kernels.h"

#define MS (1000000 / NS_PER_UNIT)

static pthread_t self;
static unsigned others;

static void told(const char *call)
{
	if (strcmp(call, "cuEventRecord") || pthread_equal(self, pthread_self()))
		return;
	__atomic_add_fetch(&others, 1, __ATOMIC_RELAXED);
	usleep(20000);
}

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", "");
	int rounds = atoi(opt(argc, argv, "--rounds", "20")), failed = 0;
	struct kernels k;
	int r = kernels_open(&k, dir);
	void *cuda = library(dir, "libcuda.so.1");
	CUresult (*create)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");
	CUresult (*create_event)(CUevent *, unsigned) = needed(cuda, "cuEventCreate");
	CUresult (*record)(CUevent, CUstream) = needed(cuda, "cuEventRecord");
	CUresult (*wait)(CUstream, CUevent, unsigned) = needed(cuda, "cuStreamWaitEvent");
	CUresult (*begin)(CUstream, int) = needed(cuda, "cuStreamBeginCapture_v2");
	CUresult (*end)(CUstream, CUgraph *) = needed(cuda, "cuStreamEndCapture");
	CUresult (*destroy)(CUgraph) = needed(cuda, "cuGraphDestroy");
	void (*subscribe)(void (*)(const char *)) = needed(cuda, "simgpu_subscribe");
	CUevent fork, join;
	CUstream origin;

	if (r || !create || !create_event || !record || !wait || !begin || !end || !destroy ||
	    !subscribe)
		return r ? r : 2;
	if (create(&origin, 1) || create_event(&fork, 2) || create_event(&join, 2))
		return 3;
	for (int i = 0; i < 20; i++) /* what one takes is known then */
		if (!kernels_launch(&k, 1, 2 * MS / 5))
			return 4;
	if (k.wait_for(k.stream))
		return 4;
	self = pthread_self();
	subscribe(told);
	for (int i = 0; i < rounds; i++) {
		CUgraph graph = NULL;

		if (begin(origin, 2) || record(fork, origin) || !kernels_launch(&k, 1, 2 * MS / 5))
			return 5;
		usleep(3000); /* the library may end what it measures just now */
		if (wait(k.stream, fork, 0) || !kernels_launch(&k, 1, 2 * MS / 5) ||
		    record(join, k.stream) || wait(origin, join, 0))
			return 6;
		usleep(50000);
		failed += end(origin, &graph) != 0;
		if (graph && destroy(graph))
			return 7;
	}
	printf("{\"failed\":%d,\"records\":%u}\n", failed, others);
	return 0;
}
