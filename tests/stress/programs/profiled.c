/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profiled.c - a profiler's callback, told of each call of the driver as it begins, makes calls
 * of its own: it waits for the card and launches a kernel.
 *
 *   profiled
 *
 * Killed after 20 s. Prints how often the callback was told of the library's own calls.
 */
#include <unistd.h>

#include "kernels.h"

static struct kernels k;
static CUresult (*wait_for_all)(void);
static __thread int told;
static unsigned own;

static void at_call(const char *call)
{
	if (told++ == 0) {
		own += strcmp(call, "cuEventRecord") == 0 || strcmp(call, "cuEventQuery") == 0 ||
		       strcmp(call, "cuStreamQuery") == 0;
		wait_for_all();
		kernels_launch(&k, 1, 50);
	}
	told--;
}

int main(void)
{
	void *cuda = library("", "libcuda.so.1");
	void (*subscribe)(void (*)(const char *));
	int failed = kernels_open(&k, "");

	if (failed)
		return failed;
	wait_for_all = needed(cuda, "cuCtxSynchronize");
	subscribe = needed(cuda, "simgpu_subscribe");
	if (!wait_for_all || !subscribe)
		return 2;
	alarm(20);
	subscribe(at_call);
	for (unsigned i = 0; i < 200; i++)
		if (!kernels_launch(&k, 1 + i % 20, 5000))
			return 3;
	if (k.wait_for(k.stream))
		return 4;
	usleep(100000); /* the watcher asks, too */
	printf("{\"own\":%u}\n", own);
	subscribe(NULL);
	return 0;
}
