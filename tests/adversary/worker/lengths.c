/* SPDX-License-Identifier: Apache-2.0 */
/* lengths.c - launches whose length varies, and kernels of several processes that wait for each other. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdlib.h>

#include "driver.h"
#include "worker.h"

#define VARY_GRID 50 /* of no other operation */
#define RING_STREAM 2

/* The host computes. A sleep is too coarse for this. */
static void pause_us(unsigned us)
{
	double end = now_s() + us * 1e-6;

	while (us && now_s() < end)
		;
}

/* The length of launch N, in microseconds, from 1 to FACTOR. */
static unsigned length_of(unsigned how, unsigned n, unsigned factor)
{
	static __thread struct drand48_data random;
	double x;

	switch (how % 4) {
	case 0: /* 1, 1, 1, FACTOR in turn */
		return n % 4 == 3 ? factor : 1;
	case 1: /* random: each order of magnitude is as frequent as another */
		drand48_r(&random, &x);
		return (unsigned)(pow(factor, x) + 0.5);
	case 2: /* bursts of short ones and of long ones */
		return n % 80 < 64 ? 1 : factor;
	default: /* one long launch after many short ones */
		return n % 200 == 199 ? factor : 1;
	}
}

/* vary STREAM HOW FACTOR PAUSE_US: the next launch of a kernel with one function and grid. */
void op_vary(const unsigned *a)
{
	static __thread unsigned n;
	unsigned factor = a[2] % 1001 ? a[2] % 1001 : 1;
	unsigned units = length_of(a[1], n++, factor) * 1000 / NS_PER_UNIT;
	void *params[] = {&units};

	cu.cuLaunchKernel(kernel_of(WORK), VARY_GRID, 1, 1, 32, 1, 1, 0, stream_of(a[0]), params,
			  NULL);
	pause_us(a[3]);
}

static void launch(enum kernel k, CUstream s, void **params)
{
	cu.cuLaunchKernel(kernel_of(k), 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
}

/*
 * ring RANK OF US HOW: the next round of this process. A kernel waits for the flag of the rank, and
 * the kernel behind it works for US and sets the flag of the next rank. HOW 0: the host waits for
 * each round; 1: for each fourth; 2: it polls; 3: the stream waits, and no kernel spins.
 */
void op_ring(const unsigned *a)
{
	static unsigned round; /* one thread of a process has this operation */
	static int registered;
	unsigned of = a[1] % RANKS ? a[1] % RANKS : RANKS, rank = a[0] % of;
	unsigned units = a[2] * 1000 / NS_PER_UNIT, how = a[3] % 4;
	CUstream s = stream_of(RING_STREAM);
	CUdeviceptr mine, next;
	void *wait[] = {&mine}, *mark[] = {&units, &next};

	if (round + 1 >= ROUNDS || now_s() >= worker_until)
		return;
	if (!registered)
		registered = cu.cuMemHostRegister_v2(shared, sizeof *shared, 0) == 0;
	mine = (CUdeviceptr)(uintptr_t)&shared->flag[round][rank];
	next = (CUdeviceptr)(uintptr_t)(rank + 1 < of ? &shared->flag[round][rank + 1]
						      : &shared->flag[round + 1][0]);
	round++;
	if (how == 3) {
		cu.cuStreamWaitValue32_v2(s, mine, 1, 0);
		launch(WORK, s, (void *[]){&units});
		cu.cuStreamWriteValue32_v2(s, next, 1, 0);
	} else {
		launch(SPIN, s, wait);
		launch(MARK, s, mark);
	}
	if (how == 2)
		while (cu.cuStreamQuery(s) == CUDA_ERROR_NOT_READY && now_s() < worker_until)
			usleep(20);
	else if (how != 1 || round % 4 == 0)
		cu.cuStreamSynchronize(s);
}
