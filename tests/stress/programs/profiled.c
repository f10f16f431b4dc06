/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profiled.c - a profiler's callback, told of each call of the driver as it begins, makes calls
 * of its own: it waits for the card and launches a kernel.
 *
 *   profiled
 *
 * Killed after 20 s. Prints how often the callback was told of the library's own calls, how many
 * of its kernels were refused in one, and how many were launched in one.
 */
#include <unistd.h>

#include "kernels.h"

static struct kernels k;
static CUresult (*wait_for_all)(void);
static __thread int told;
static unsigned own, refused, launched;

static void at_call(const char *call)
{
	if (told++ == 0) {
		int measures = strncmp(call, "cuEvent", 7) == 0, went;

		wait_for_all();
		went = kernels_launch(&k, 1, 50);
		own += measures || strcmp(call, "cuStreamQuery") == 0;
		launched += measures && went;
		refused += measures && !went;
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
	printf("{\"own\":%u,\"refused\":%u,\"launched\":%u}\n", own, refused, launched);
	subscribe(NULL);
	return 0;
}
