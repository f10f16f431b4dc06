/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forks.c - a process with a context forks.
 *
 *   forks [--libdir DIR] --what idle|cuda|exec [--count 50]
 *
 * idle: children that use no CUDA, so many at once; prints how many slots the job then has.
 * cuda: children of a process that has only loaded CUDA each allocate; prints how many could.
 * exec: takes 1 GiB and becomes sleep. For the simulated card.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels.h"

#define MOST 500

static CUresult (*alloc)(CUdeviceptr *, size_t);

static int idle(int count)
{
	pid_t child[MOST];

	for (int i = 0; i < count; i++) {
		child[i] = fork();
		if (child[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			pause();
			_exit(0);
		}
	}
	printf("{\"children\":%d}\n", count);
	fflush(stdout);
	getchar(); /* until the test has looked */
	for (int i = 0; i < count; i++) {
		kill(child[i], SIGKILL);
		waitpid(child[i], NULL, 0);
	}
	return 0;
}

static int cuda(int count, const char *dir)
{
	int done = 0;

	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			struct kernels k;
			CUdeviceptr p;

			_exit(kernels_open(&k, dir) || alloc(&p, 1 << 20) ? 1 : 0);
		}
		waitpid(child, &status, 0);
		done += status == 0;
	}
	printf("{\"allocated\":%d}\n", done);
	return 0;
}

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", ""), *what = opt(argc, argv, "--what", "");
	int count = atoi(opt(argc, argv, "--count", "50")), failed;
	void *driver = library(dir, "libcuda.so.1");
	struct kernels k;
	CUdeviceptr p;

	alloc = needed(driver, "cuMemAlloc_v2");
	if (!alloc || count > MOST)
		return 2;
	if (!strcmp(what, "cuda"))
		return cuda(count, dir);
	failed = kernels_open(&k, dir);
	if (failed || alloc(&p, 1 << 30))
		return failed ? failed : 3;
	if (!strcmp(what, "idle"))
		return idle(count);
	puts("{}");
	fflush(stdout);
	getchar();
	execl("/bin/sleep", "sleep", "60", (char *)NULL);
	return 5;
}
