/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - processes of one job whose kernels wait for each other: a token goes around.
 *
 *   ring [--libdir DIR] [--procs 4] [--rounds 200] [--graph 0] [--secs 60]
 *
 * In each round each process launches a kernel that spins until its flag is set, and then a kernel
 * that sets the flag of the next process. Both kernels are in one stream. The host waits for them.
 * With --graph 1 each round is a graph of the two kernels. The flags are in shared host memory.
 * The program prints the rounds that were completed, their time, and when each tenth of them
 * was complete. It works on a real card, too.
 */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "typed.h"

#define PROCS 16
#define CAPTURE_RELAXED 2

static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=wait_flag ns_per_unit=0 wait_param=0\n"
			  ".visible .entry wait_flag(.param .u64 flag)\n"
			  "{\n"
			  "	.reg .pred %p<2>;\n"
			  "	.reg .b32 %r<2>;\n"
			  "	.reg .b64 %rd<2>;\n"
			  "	ld.param.u64 %rd1, [flag];\n"
			  "LOOP:\n"
			  "	ld.volatile.global.u32 %r1, [%rd1];\n"
			  "	setp.eq.u32 %p1, %r1, 0;\n"
			  "	@%p1 bra LOOP;\n"
			  "	ret;\n"
			  "}\n"
			  "// simgpu: entry=set_flag ns_per_unit=1000 count_param=0\n"
			  ".visible .entry set_flag(.param .u64 flag)\n"
			  "{\n"
			  "	.reg .b64 %rd<2>;\n"
			  "	ld.param.u64 %rd1, [flag];\n"
			  "	st.volatile.global.u32 [%rd1], 1;\n"
			  "	membar.sys;\n"
			  "	ret;\n"
			  "}\n";

static struct shared {
	uint32_t ready, failed;
	double began, end;
	uint32_t rounds;
	double tenth[10];
	uint32_t flag[]; /* rounds + 1 of each process */
} *all;

static unsigned procs, rounds;
static int graphs;

static CUdeviceptr at(CUdeviceptr flags, unsigned round, unsigned proc)
{
	return flags + ((uint64_t)round * procs + proc) * sizeof *all->flag;
}

static void launch(CUfunction f, CUdeviceptr flag, CUstream s)
{
	void *params[] = {&flag};

	CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static void go_around(const char *libdir, unsigned me, size_t bytes)
{
	CUfunction wait_flag, set_flag;
	CUgraphExec exec;
	CUdeviceptr flags;
	CUmodule module;
	CUgraph graph;
	CUcontext ctx;
	CUstream s;

	cuda = library(libdir, "libcuda.so.1");
	ok(!cuda, "libcuda.so.1");
	CALL(cuInit, 0);
	CALL(cuCtxCreate_v2, &ctx, 0, 0);
	CALL(cuModuleLoadData, &module, ptx);
	CALL(cuModuleGetFunction, &wait_flag, module, "wait_flag");
	CALL(cuModuleGetFunction, &set_flag, module, "set_flag");
	CALL(cuMemHostRegister_v2, all, bytes, 2);
	CALL(cuMemHostGetDevicePointer_v2, &flags, all, 0);
	flags += offsetof(struct shared, flag);
	CALL(cuStreamCreate, &s, 1);
	__atomic_add_fetch(&all->ready, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&all->ready, __ATOMIC_SEQ_CST) < procs)
		usleep(1000);
	if (me == 0) {
		all->began = now_s();
		__atomic_store_n(&all->flag[0], 1, __ATOMIC_SEQ_CST);
	}
	for (unsigned r = 0; r < rounds; r++) {
		CUdeviceptr mine = at(flags, r, me), next = at(flags, r, me + 1);

		/* The last one begins the next round. */
		if (graphs)
			CALL(cuStreamBeginCapture_v2, s, CAPTURE_RELAXED);
		launch(wait_flag, mine, s);
		launch(set_flag, next, s);
		if (graphs) {
			CALL(cuStreamEndCapture, s, &graph);
			CALL(cuGraphInstantiateWithFlags, &exec, graph, 0);
			CALL(cuGraphLaunch, exec, s);
		}
		CALL(cuStreamSynchronize, s);
		if (me != procs - 1)
			continue;
		all->end = now_s();
		all->rounds = r + 1;
		if ((r + 1) * 10 % rounds < 10)
			all->tenth[((r + 1) * 10 / rounds - 1) % 10] = all->end - all->began;
	}
}

int main(int argc, char **argv)
{
	double until = now_s() + atof(opt(argc, argv, "--secs", "60"));
	const char *libdir = opt(argc, argv, "--libdir", "");
	pid_t pid[PROCS];
	unsigned ended = 0;
	size_t bytes;
	int status;

	procs = (unsigned)atoi(opt(argc, argv, "--procs", "4"));
	rounds = (unsigned)atoi(opt(argc, argv, "--rounds", "200"));
	graphs = atoi(opt(argc, argv, "--graph", "0"));
	if (!procs || procs > PROCS || rounds < 10)
		return 2;
	bytes = sizeof *all + (rounds + 1) * procs * sizeof *all->flag;
	bytes = (bytes + 4095) / 4096 * 4096;
	all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		return 3;
	for (unsigned i = 0; i < procs; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			go_around(libdir, i, bytes);
			return 0;
		}
	}
	while (ended < procs && now_s() < until) {
		if (waitpid(-1, &status, WNOHANG) <= 0) {
			usleep(1000);
			continue;
		}
		ended++;
		if (status)
			return 4;
	}
	for (unsigned i = 0; i < procs && ended < procs; i++)
		kill(pid[i], SIGKILL);
	printf("{\"rounds\":%u,\"secs\":%.3f,\"tenths\":[", all->rounds, all->end - all->began);
	for (unsigned i = 0; i < 10; i++)
		printf("%s%.3f", i ? "," : "", all->tenth[i]);
	printf("]}\n");
	return 0;
}
