/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.c - a process that makes one token after another, as inference does: steps of 60
 * kernels of 2 to 8 us, each step waited for. The host takes longer for a step than the
 * card: it launches twelve kernels in a row, then computes.
 *
 *   tokens [--libdir DIR] [--secs 3]
 *
 * Kernels of several lengths have grids of their own. Prints the steps per second, and what
 * the kernels took in all. For the simulated card, on which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"

#define KERNELS 60
#define ROW 12
#define LAUNCH_S 2e-6
#define COMPUTE_S 110e-6
#define END_S 150e-6

static void compute(double s)
{
	double end = now_s() + s;

	while (now_s() < end)
		;
}

/* Returns what its kernels take, in nanoseconds; 0: a call failed. */
static uint64_t step(const struct kernels *k)
{
	static const unsigned us[] = {2, 3, 3, 5, 8, 3, 2, 4, 6, 4};
	const unsigned kinds = sizeof(us) / sizeof(*us);
	uint64_t took = 0;

	for (unsigned i = 0; i < KERNELS; i++) {
		unsigned units = us[i % kinds] * 1000 / NS_PER_UNIT;

		compute(i % ROW ? LAUNCH_S : COMPUTE_S);
		if (!kernels_launch(k, 1 + i % kinds, units))
			return 0;
		took += (uint64_t)units * NS_PER_UNIT;
	}
	if (k->wait_for(k->stream))
		return 0;
	compute(END_S);
	return took;
}

int main(int argc, char **argv)
{
	double secs = atof(opt(argc, argv, "--secs", "3")), began;
	uint64_t done = 0, steps = 0, took;
	struct kernels kernels;
	int failed = kernels_open(&kernels, opt(argc, argv, "--libdir", ""));

	if (failed)
		return failed;
	began = now_s();
	do {
		took = step(&kernels);
		if (!took)
			return 4;
		done += took;
		steps++;
	} while (now_s() - began < secs);
	printf("{\"done_ns\":%llu,\"steps_per_s\":%.1f,\"secs\":%.3f}\n", (unsigned long long)done,
	       (double)steps / (now_s() - began), now_s() - began);
	return 0;
}
