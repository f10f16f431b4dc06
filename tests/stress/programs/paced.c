/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paced.c - a process that stays below its limit: rows of short kernels, each waited for,
 * with pauses between them.
 *
 *   paced [--libdir DIR] [--secs 3] [--lengths steady|grow|random]
 *
 * All kernels are of one function with one grid, of 10 us; or of 10 us and, from the
 * middle on, 18 us; or of 4 to 16 us. A row is a few hundred microseconds long, and a
 * pause twice as long as its row. Prints what the kernels took in all. For the simulated card, on
 * which that is known.
 */
#include <stdint.h>
#include <stdlib.h>

#include "kernels.h"

static unsigned units(const char *lengths, double part)
{
	if (strcmp(lengths, "random") == 0)
		return 200 + (unsigned)rand() % 601;
	return strcmp(lengths, "grow") == 0 && part > 0.5 ? 900 : 500;
}

int main(int argc, char **argv)
{
	const char *lengths = opt(argc, argv, "--lengths", "steady");
	double secs = atof(opt(argc, argv, "--secs", "3")), began;
	struct kernels kernels;
	uint64_t done = 0;
	int failed = kernels_open(&kernels, opt(argc, argv, "--libdir", ""));

	if (failed)
		return failed;
	began = now_s();
	do {
		int rows = 20 + rand() % 21;
		uint64_t row = 0;

		for (int i = 0; i < rows; i++) {
			unsigned n = units(lengths, (now_s() - began) / secs);

			if (!kernels_launch(&kernels, 1, n))
				return 4;
			row += (uint64_t)n * NS_PER_UNIT;
		}
		if (kernels.wait_for(kernels.stream))
			return 5;
		done += row;
		nanosleep(&(struct timespec){.tv_nsec = (long)(2 * row)}, NULL);
	} while (now_s() - began < secs);
	printf("{\"done_ns\":%llu,\"secs\":%.3f}\n", (unsigned long long)done, now_s() - began);
	return 0;
}
