/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inturn.c - launches kernels that take the card less time than the host, in four streams in turn.
 *
 *   inturn
 *
 * Prints how many launches there were, and how many events the library recorded. For the simulated
 * card.
 */
#include "kernels.h"

#define STREAMS 4
#define LAUNCHES 40000
#define HOST_S 10e-6 /* from launch to launch */

static unsigned records;

static void told(const char *call)
{
	if (strcmp(call, "cuEventRecord") == 0)
		__atomic_add_fetch(&records, 1, __ATOMIC_RELAXED);
}

int main(void)
{
	struct kernels k[STREAMS];
	int r = kernels_open(&k[0], "");
	void *cuda = library("", "libcuda.so.1");
	CUresult (*create)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");
	void (*subscribe)(void (*)(const char *)) = needed(cuda, "simgpu_subscribe");

	if (r || !create || !subscribe)
		return r ? r : 2;
	for (unsigned i = 0; i < STREAMS; i++) {
		k[i] = k[0];
		if (create(&k[i].stream, 1))
			return 3;
	}
	subscribe(told);
	for (unsigned i = 0; i < LAUNCHES; i++) {
		double until = now_s() + HOST_S;

		if (!kernels_launch(&k[i % STREAMS], 1, 1000 / NS_PER_UNIT))
			return 4;
		while (now_s() < until)
			;
	}
	subscribe(NULL);
	printf("{\"launches\":%d,\"records\":%u}\n", LAUNCHES, records);
	return 0;
}
