/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancel.c - a thread is cancelled while its allocation waits for memory of a process that has
 * just died, or its launch for GPU time.
 *
 *   cancel [--libdir DIR] [--launch 1]
 *
 * Takes 5 GiB in a process that is killed, then 5 in a thread. Prints whether that one was
 * seen to wait. For a limit of 8 GiB. --launch 1: launches kernels of 5 ms in a thread instead, and
 * prints whether it was cancelled, and in how many launches.
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

static struct kernels k;
static unsigned begun, ended;

static void *launch(void *unused)
{
	(void)unused;
	set(context);
	for (;;) {
		begun++;
		kernels_launch(&k, 1, 5000000 / NS_PER_UNIT);
		ended++;
		pthread_testcancel();
	}
	return NULL;
}

static int cancel_a_launch(void)
{
	void *result = NULL;
	pthread_t thread;

	if (pthread_create(&thread, NULL, launch, NULL))
		return 4;
	usleep(300000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	printf("{\"cancelled\":%d,\"inside\":%u}\n", result == PTHREAD_CANCELED, begun - ended);
	return 0;
}

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", "");
	void *driver = library(dir, "libcuda.so.1"), *result = NULL;
	CUresult (*current)(CUcontext *) = needed(driver, "cuCtxGetCurrent");
	int ready[2];
	char byte;
	pthread_t thread;
	CUdeviceptr p;
	pid_t child;

	alloc = needed(driver, "cuMemAlloc_v2");
	set = needed(driver, "cuCtxSetCurrent");
	if (!alloc || !set || !current || pipe(ready))
		return 2;
	if (atoi(opt(argc, argv, "--launch", "0")))
		return kernels_open(&k, dir) || current(&context) ? 3 : cancel_a_launch();
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
