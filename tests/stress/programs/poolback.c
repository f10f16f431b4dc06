/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poolback.c - what a pool has given back to the card is given back to the job.
 *
 *   poolback free|graph|take|alternate [--libdir DIR]
 *
 * free: takes 5 GiB of the device's pool, frees it, waits for the card, then for the end of
 * its standard input: it makes no call meanwhile. graph: launches a graph that takes 5 GiB,
 * and waits as well. take: asks for 5 GiB until it gets them, for 5 s. Prints a line when it
 * is there: the error. alternate: two processes in turn take 5 GiB of the device's pool, free it, and
 * wait for the stream. Prints how often each was refused in 100 rounds.
 */
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

static CUresult graph(size_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {1, 0}},
					.bytesize = bytes};
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph g;
	CUresult r = TRY(cuGraphCreate, &g, 0u);

	r = r ? r : TRY(cuGraphAddMemAllocNode, &node, g, (void *)NULL, (size_t)0, &p);
	r = r ? r : TRY(cuGraphInstantiateWithFlags, &exec, g, 0ull);
	return r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
}

/* Round by round, as the other process gives the word. */
static int turns(int from, int to)
{
	CUresult ready = TRY(cuInit, 0u);
	int refused = 0;
	CUdeviceptr p;
	CUcontext ctx;
	char c = 0;

	if (ready || TRY(cuCtxCreate_v2, &ctx, 0u, 0))
		return 100;
	for (int i = 0; i < 100; i++) {
		if (read(from, &c, 1) != 1)
			return 100;
		if (TRY(cuMemAllocAsync, &p, (size_t)5 << 30, (CUstream)NULL))
			refused++;
		else if (TRY(cuMemFreeAsync, p, (CUstream)NULL) ||
			 TRY(cuStreamSynchronize, (CUstream)NULL))
			return 100;
		if (write(to, &c, 1) != 1)
			return 100;
	}
	return refused;
}

static int alternate(void)
{
	int a[2], b[2], status = 0, own;
	pid_t child;

	if (pipe(a) || pipe(b) || (child = fork()) < 0)
		return 3;
	if (child == 0)
		_exit(turns(a[0], b[1]));
	if (write(b[1], "", 1) != 1)
		return 3;
	own = turns(b[0], a[1]);
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return 3;
	printf("{\"refused\":%d,\"child\":%d}\n", own, WEXITSTATUS(status));
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	const size_t bytes = 5ull << 30;
	CUresult r = 0;
	CUdeviceptr p;
	CUcontext ctx;
	double until;
	char c;

	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	if (cuda && strcmp(how, "alternate") == 0)
		return alternate();
	if (!cuda || TRY(cuInit, 0u) || TRY(cuCtxCreate_v2, &ctx, 0u, 0))
		return 3;
	if (strcmp(how, "take") == 0) {
		until = now_s() + 5;
		while ((r = TRY(cuMemAlloc_v2, &p, bytes)) == CUDA_ERROR_OUT_OF_MEMORY &&
		       now_s() < until)
			usleep(10000);
		printf("{\"error\":%d}\n", r);
		return 0;
	}
	if (strcmp(how, "graph") == 0) {
		r = graph(bytes);
	} else {
		r = TRY(cuMemAllocAsync, &p, bytes, (CUstream)NULL);
		r |= TRY(cuMemFreeAsync, p, (CUstream)NULL);
		r |= TRY(cuStreamSynchronize, (CUstream)NULL);
	}
	printf("{\"error\":%d}\n", r);
	fflush(stdout);
	return read(0, &c, 1) != 0;
}
