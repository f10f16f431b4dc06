/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watched.c - a program whose threads need large stacks, or that gets none. Kernels of 2 ms
 * follow each other.
 *
 *   watched [--libdir DIR] [--secs 1] [--no-thread 1]
 *
 * Prints how many ran in a second, and whether the library has its thread. For the simulated
 * card, on which that is steady.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernels.h"

#define UNITS (2000000 / NS_PER_UNIT)

/* Each thread has its own, on its stack. */
static __thread volatile char large[300 << 10];

static int no_thread;

/* In front of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		dlsym(RTLD_NEXT, "pthread_create");

	return no_thread ? EAGAIN : real(thread, attr, run, arg);
}

static int has_watcher(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int found = 0;

	while (tasks && (task = readdir(tasks))) {
		char path[320], name[32] = "";
		FILE *f;

		snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
		f = fopen(path, "r");
		if (f && fgets(name, sizeof name, f))
			found |= strcmp(name, "vgpu-watcher\n") == 0;
		if (f)
			fclose(f);
	}
	if (tasks)
		closedir(tasks);
	return found;
}

int main(int argc, char **argv)
{
	double secs = atof(opt(argc, argv, "--secs", "1")), began;
	struct kernels k;
	unsigned done = 0;
	int failed;

	no_thread = atoi(opt(argc, argv, "--no-thread", "0"));
	large[sizeof large - 1] = 1;
	failed = kernels_open(&k, opt(argc, argv, "--libdir", ""));
	if (failed)
		return failed;
	began = now_s();
	do {
		for (int n = 0; n < 4; n++, done++)
			if (!kernels_launch(&k, 1, UNITS))
				return 4;
		if (k.wait_for(k.stream))
			return 5;
	} while (now_s() - began < secs);
	printf("{\"per_second\":%.2f,\"watcher\":%d}\n", done / (now_s() - began), has_watcher());
	return 0;
}
