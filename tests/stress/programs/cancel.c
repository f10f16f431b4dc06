/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancel.c - a thread is cancelled while its allocation waits for memory of a process that has
 * just died.
 *
 *   cancel [--libdir DIR]
 *
 * Takes 5 GiB in a process that is killed, then 5 in a thread. Prints whether that one was
 * seen to wait. For a limit of 8 GiB.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels.h"

static CUresult (*alloc)(CUdeviceptr *, size_t), (*set)(CUcontext);
static CUcontext context;

static void *take(void *unused)
{
	CUdeviceptr p;

	set(context);
	alloc(&p, 5ull << 30);
	return unused;
}

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", "");
	void *driver = library(dir, "libcuda.so.1"), *result = NULL;
	CUresult (*current)(CUcontext *) = needed(driver, "cuCtxGetCurrent");
	int ready[2];
	char byte;
	pthread_t thread;
	struct kernels k;
	CUdeviceptr p;
	pid_t child;

	alloc = needed(driver, "cuMemAlloc_v2");
	set = needed(driver, "cuCtxSetCurrent");
	if (!alloc || !set || !current || pipe(ready))
		return 2;
	child = fork();
	if (child == 0) {
		if (kernels_open(&k, dir) || alloc(&p, 5ull << 30) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1 || kernels_open(&k, dir) || current(&context))
		return 3;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (pthread_create(&thread, NULL, take, &k))
		return 4;
	usleep(50000); /* of the 200 ms for which the dead one counts */
	pthread_cancel(thread);
	pthread_join(thread, &result);
	printf("{\"cancelled\":%d}\n", result == PTHREAD_CANCELED);
	return 0;
}
