// SPDX-License-Identifier: Apache-2.0
/*
 * cost.c - what the launch of an empty kernel costs the host. In batches, each
 * followed by a wait, so that the driver's queue never fills and the card never
 * counts; and one by one. What a preloaded library adds is measured in pairs: a batch
 * through it and one past it, in one process, since two processes differ by more.
 */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 200
#define BATCHES 400
#define SINGLES 4000
#define PAIRS 2000

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double launch_ns(struct card *c, int n)
{
	unsigned units = 1;
	void *params[] = {&units};
	uint64_t t = now_ns();

	for (int i = 0; i < n; i++)
		must(cu.LaunchKernel(c->empty, 1, 1, 1, 1, 1, 1, 0, c->stream, params, NULL),
		     "cuLaunchKernel");
	t = now_ns() - t;
	must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
	return (double)t / n;
}

/* With paced, half of the time passes between batches, so that a cap of 50 %
 * has nothing to hold back. */
void cost(struct card *c, bool paced)
{
	static double batch[BATCHES], single[SINGLES];
	const struct timespec pause = {0, 1000000};

	for (int i = 0; i < 20; i++)
		launch_ns(c, BATCH);
	for (int i = 0; i < BATCHES; i++) {
		batch[i] = launch_ns(c, BATCH);
		if (paced)
			nanosleep(&pause, NULL);
	}
	for (int i = 0; i < SINGLES; i++) {
		single[i] = launch_ns(c, 1);
		if (paced && i % 100 == 0)
			nanosleep(&pause, NULL);
	}
	qsort(batch, BATCHES, sizeof(*batch), ascending);
	qsort(single, SINGLES, sizeof(*single), ascending);
	printf("{\"launch_ns\":%.1f,\"launch_p99_ns\":%.1f,\"single_ns\":%.1f,"
	       "\"single_p99_ns\":%.1f}\n",
	       batch[BATCHES / 2], batch[BATCHES * 99 / 100], single[SINGLES / 2],
	       single[SINGLES * 99 / 100]);
	fflush(stdout);
}

/* Through what is preloaded and past it, in this order or the other. */
static double added_ns(struct card *c, void *through, void *past, bool turned)
{
	double ns[2];

	for (int i = 0; i < 2; i++) {
		bool without = (i == 1) != turned;

		memcpy(&cu.LaunchKernel, without ? &past : &through, sizeof(cu.LaunchKernel));
		ns[without] = launch_ns(c, BATCH);
	}
	return ns[0] - ns[1];
}

void cost_pairs(struct card *c, bool paced)
{
	static double added[PAIRS];
	const struct timespec pause = {0, 1000000};
	void *past = direct("cuLaunchKernel"), *through;
	/* 95 of 100 times the true median lies between samples so far from the middle */
	const int far = 44; /* 1.96 * sqrt(PAIRS) / 2 */

	if (!past)
		die("cuLaunchKernel", "not found in libcuda's own symbols");
	memcpy(&through, &cu.LaunchKernel, sizeof(through));
	for (int i = -20; i < PAIRS; i++) {
		double ns = added_ns(c, through, past, i & 1);

		if (i >= 0)
			added[i] = ns;
		if (paced)
			nanosleep(&pause, NULL);
	}
	qsort(added, PAIRS, sizeof(*added), ascending);
	printf("{\"added_ns\":%.1f,\"low_ns\":%.1f,\"high_ns\":%.1f,\"preloaded\":%s}\n",
	       added[PAIRS / 2], added[PAIRS / 2 - far], added[PAIRS / 2 + far],
	       through == past ? "false" : "true");
	fflush(stdout);
}
