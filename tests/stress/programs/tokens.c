/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokens.c - a process that makes one token after another, as inference does: steps of 60
 * kernels of 2 to 8 us, each step waited for. The host takes longer for a step than the
 * card: it launches twelve kernels in a row, then computes.
 *
 *   tokens [--libdir DIR] [--secs 3] [--row 12] [--compute-us 110] [--stop-us 0]
 *          [--longer 1] [--later 1]
 *
 * --row 1 --compute-us 15: as PyTorch launches, one kernel at a time. --stop-us 300: a child
 * stops this process for so long now and then, as a busy machine does. --longer 20: in the first
 * LONGER_S each kernel takes so many times as long, as with another input; --later 20: after it.
 *
 * Kernels of several lengths have grids of their own. Prints the steps per second, and what
 * the kernels took in all. For the simulated card, on which that is known.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernels.h"

#define KERNELS 60
#define LAUNCH_S 2e-6
#define END_S 150e-6
#define LONGER_S 0.3

static unsigned row;
static double compute_s;

/* Before this process opens the card: a context does not survive a fork. */
static void stop_now_and_then(unsigned us)
{
	pid_t of = getpid();

	if (fork() != 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == of) {
		usleep(us + (unsigned)rand() % 1000);
		kill(of, SIGSTOP);
		usleep(us);
		kill(of, SIGCONT);
	}
	_exit(0);
}

static void compute(double s)
{
	double end = now_s() + s;

	while (now_s() < end)
		;
}

/* Returns what its kernels take, in nanoseconds; 0: a call failed. */
static uint64_t step(const struct kernels *k, unsigned longer)
{
	static const unsigned us[] = {2, 3, 3, 5, 8, 3, 2, 4, 6, 4};
	const unsigned kinds = sizeof(us) / sizeof(*us);
	uint64_t took = 0;

	for (unsigned i = 0; i < KERNELS; i++) {
		unsigned units = us[i % kinds] * longer * 1000 / NS_PER_UNIT;

		compute(i % row ? LAUNCH_S : compute_s);
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
	unsigned stop_us, longer = (unsigned)atoi(opt(argc, argv, "--longer", "1")),
			  later = (unsigned)atoi(opt(argc, argv, "--later", "1"));
	int failed;

	row = (unsigned)atoi(opt(argc, argv, "--row", "12"));
	compute_s = 1e-6 * atof(opt(argc, argv, "--compute-us", "110"));
	stop_us = (unsigned)atoi(opt(argc, argv, "--stop-us", "0"));
	if (stop_us)
		stop_now_and_then(stop_us);
	failed = kernels_open(&kernels, opt(argc, argv, "--libdir", ""));
	if (failed)
		return failed;
	began = now_s();
	do {
		took = step(&kernels, now_s() - began < LONGER_S ? longer : later);
		if (!took)
			return 4;
		done += took;
		steps++;
	} while (now_s() - began < secs);
	printf("{\"done_ns\":%llu,\"steps_per_s\":%.1f,\"secs\":%.3f}\n", (unsigned long long)done,
	       (double)steps / (now_s() - began), now_s() - began);
	return 0;
}
