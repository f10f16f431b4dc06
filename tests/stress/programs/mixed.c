/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixed.c - launches one kernel, with one grid, whose length differs from launch to launch.
 *
 *   mixed [--libdir DIR] [--us 1,1,1,100] [--pause-us 25] [--order turn|random|burst]
 *         [--streams 1] [--graph 0] [--timed 0] [--secs 10]
 *
 * The host pauses after each launch, or with "burst" after each row of lengths. With --graph 1 each
 * launch is a graph of one kernel, whose parameter the host changes first. With --timed 1 it measures
 * each launch between two events, waits for it, and prints the median and the 90th percentile of the
 * times as multiples of the kernel's length. The program prints the
 * sum of the kernel times as a part of the wall time, and the launches. On a real card the
 * kernel spins by the card's clock and adds the time that it took to a sum in memory.
 */
#include <stdint.h>
#include <stdlib.h>

#include "typed.h"

#define LENGTHS 32
#define STREAMS 512
#define TIMES 4096
#define BLOCKS 132
#define THREADS 128
#define CAPTURE_RELAXED 2

static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=spin ns_per_unit=1 unit_param=0\n"
			  ".visible .entry spin(.param .u32 ns, .param .u64 sum)\n"
			  "{\n"
			  "	.reg .pred %p<3>;\n"
			  "	.reg .b32 %r<4>;\n"
			  "	.reg .b64 %rd<6>;\n"
			  "	ld.param.u32 %r1, [ns];\n"
			  "	ld.param.u64 %rd1, [sum];\n"
			  "	cvt.u64.u32 %rd2, %r1;\n"
			  "	mov.u64 %rd3, %globaltimer;\n"
			  "LOOP:\n"
			  "	mov.u64 %rd4, %globaltimer;\n"
			  "	sub.u64 %rd4, %rd4, %rd3;\n"
			  "	setp.lt.u64 %p1, %rd4, %rd2;\n"
			  "	@%p1 bra LOOP;\n"
			  "	mov.u32 %r2, %ctaid.x;\n"
			  "	mov.u32 %r3, %tid.x;\n"
			  "	or.b32 %r2, %r2, %r3;\n"
			  "	setp.ne.u32 %p2, %r2, 0;\n"
			  "	@%p2 bra DONE;\n"
			  "	red.global.add.u64 [%rd1], %rd4;\n"
			  "DONE:\n"
			  "	ret;\n"
			  "}\n";

static struct {
	double length[LENGTHS], pause;
	unsigned lengths, streams;
	int random, burst, graph, timed;
} is;

static void pause_for(double *at, double s)
{
	double now = now_s();

	/* A host that lost its processor does not catch up. */
	*at = (*at > now - 50e-6 ? *at : now) + s;
	while (now_s() < *at)
		;
}

static void read_lengths(const char *text)
{
	char *end;

	for (; is.lengths < LENGTHS && *text; text = *end ? end + 1 : end)
		is.length[is.lengths++] = strtod(text, &end) * 1000;
}

static CUfunction function;
static CUstream stream[STREAMS];
static CUgraphExec graph[STREAMS];
static CUgraphNode node[STREAMS];
static CUdeviceptr sum;

static CUevent event[2];
static double took[TIMES]; /* in times of the kernel's length */
static unsigned times;

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void make_graph(unsigned s)
{
	unsigned ns = 1000;
	void *params[] = {&ns, &sum};
	CUgraph made;
	size_t n = 1;

	CALL(cuStreamBeginCapture_v2, stream[s], CAPTURE_RELAXED);
	CALL(cuLaunchKernel, function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream[s], params, NULL);
	CALL(cuStreamEndCapture, stream[s], &made);
	CALL(cuGraphGetNodes, made, &node[s], &n);
	CALL(cuGraphInstantiateWithFlags, &graph[s], made, 0);
}

static void launch(unsigned s, unsigned ns)
{
	void *params[] = {&ns, &sum};

	if (is.graph) {
		CUDA_KERNEL_NODE_PARAMS p = {.func = function,
					     .gridDimX = BLOCKS,
					     .gridDimY = 1,
					     .gridDimZ = 1,
					     .blockDimX = THREADS,
					     .blockDimY = 1,
					     .blockDimZ = 1,
					     .kernelParams = params};

		CALL(cuGraphExecKernelNodeSetParams_v2, graph[s], node[s], &p);
		CALL(cuGraphLaunch, graph[s], stream[s]);
		return;
	}
	CALL(cuLaunchKernel, function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream[s], params, NULL);
}

static void launch_timed(unsigned s, double ns)
{
	float ms;

	CALL(cuEventRecord, event[0], stream[s]);
	launch(s, (unsigned)ns);
	CALL(cuEventRecord, event[1], stream[s]);
	CALL(cuEventSynchronize, event[1]);
	CALL(cuEventElapsedTime, &ms, event[0], event[1]);
	if (times < TIMES)
		took[times++] = ms * 1e6 / ns;
}

int main(int argc, char **argv)
{
	const char *order = opt(argc, argv, "--order", "turn");
	double secs = atof(opt(argc, argv, "--secs", "10")), began, at, wall, host = 0;
	uint64_t launches = 0, measured = 0;
	CUcontext ctx;
	CUmodule module;

	read_lengths(opt(argc, argv, "--us", "1,1,1,100"));
	is.pause = atof(opt(argc, argv, "--pause-us", "25")) / 1e6;
	is.streams = (unsigned)atoi(opt(argc, argv, "--streams", "1"));
	is.graph = atoi(opt(argc, argv, "--graph", "0"));
	is.timed = atoi(opt(argc, argv, "--timed", "0"));
	is.random = strcmp(order, "random") == 0;
	is.burst = strcmp(order, "burst") == 0;
	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	if (!cuda || !is.lengths || !is.streams || is.streams > STREAMS)
		return 2;
	CALL(cuInit, 0);
	CALL(cuCtxCreate_v2, &ctx, 0, 0);
	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleGetFunction, &function, module, "spin");
	CALL(cuMemAlloc_v2, &sum, sizeof measured);
	CALL(cuMemsetD8_v2, sum, 0, sizeof measured);
	for (unsigned s = 0; s < is.streams; s++) {
		CALL(cuStreamCreate, &stream[s], 1);
		if (is.graph)
			make_graph(s);
	}
	for (unsigned i = 0; i < 2; i++)
		CALL(cuEventCreate, &event[i], 0);
	CALL(cuCtxSynchronize);
	for (began = at = now_s(); now_s() - began < secs; launches++) {
		unsigned turn = (unsigned)(launches % is.lengths);
		double ns = is.length[is.random ? (unsigned)rand() % is.lengths : turn];

		if (is.timed)
			launch_timed((unsigned)(launches % is.streams), ns);
		else
			launch((unsigned)(launches % is.streams), (unsigned)ns);
		host += ns;
		if (!is.burst)
			pause_for(&at, is.pause);
		else if (turn == is.lengths - 1)
			pause_for(&at, is.pause * is.lengths);
	}
	CALL(cuCtxSynchronize);
	wall = now_s() - began;
	CALL(cuMemcpyDtoH_v2, &measured, sum, sizeof measured);
	qsort(took, times, sizeof took[0], compare);
	printf("{\"part\":%.4f,\"done_ns\":%.0f,\"launches\":%llu,\"secs\":%.3f,\"p50\":%.3f,"
	       "\"p90\":%.3f}\n",
	       (measured ? (double)measured : host) / 1e9 / wall, host,
	       (unsigned long long)launches, wall, took[times / 2], took[times * 9 / 10]);
	return 0;
}
