/* SPDX-License-Identifier: Apache-2.0 */
/*
 * behind.c - a kernel waits in its stream for a function of the host, and kernels of another stream
 * work meanwhile, one after the other.
 *
 *   behind KERNEL_US SECONDS
 *
 * Prints the part of the time in which these were on the card. For the simulated card.
 */
#include <stdlib.h>

#include "held.h"
#include "kernels.h"

int main(int argc, char **argv)
{
	struct kernels held, working;
	int r = argc == 3 ? kernels_open(&held, "") : 2;
	void *cuda = library("", "libcuda.so.1");
	CUresult (*create)(CUstream *, unsigned) = needed(cuda, "cuStreamCreate");
	CUresult (*host)(CUstream, void (*)(void *), void *) = needed(cuda, "cuLaunchHostFunc");
	unsigned us, n = 0;
	double began, took;

	if (r || !create || !host)
		return r ? r : 2;
	us = (unsigned)atoi(argv[1]);
	working = held;
	if (create(&working.stream, 1) || create(&held.stream, 1) || !kernels_launch(&held, 1, 1) ||
	    held.wait_for(held.stream) || host(held.stream, hold, NULL) ||
	    !kernels_launch(&held, 1, 1))
		return 3;
	began = now_s();
	do {
		if (!kernels_launch(&working, 2, us * (1000 / NS_PER_UNIT)) ||
		    working.wait_for(working.stream))
			return 4;
		n++;
		took = now_s() - began;
	} while (took < atof(argv[2]));
	let_go();
	if (held.wait_for(held.stream))
		return 5;
	printf("{\"part\":%.3f}\n", n * us / 1e6 / took);
	return 0;
}
