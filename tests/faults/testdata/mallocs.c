// SPDX-License-Identifier: Apache-2.0
/*
 * mallocs.c - preloaded into a daemon of Slurm: writes twice a second the bytes that
 * malloc has given out to the file $VGPU_MALLOCS. Not into what the daemon starts.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static char path[256];

static void *tell(void *unused)
{
	(void)unused;
	for (;;) {
		struct mallinfo2 m = mallinfo2();
		FILE *f = fopen(path, "w");

		if (f) {
			fprintf(f, "%zu\n", m.uordblks + m.hblkhd);
			fclose(f);
		}
		nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
	}
	return NULL;
}

__attribute__((constructor)) static void start(void)
{
	const char *to = getenv("VGPU_MALLOCS");
	sigset_t all, old;
	pthread_t thread;

	if (!to)
		return;
	snprintf(path, sizeof path, "%s", to);
	unsetenv("LD_PRELOAD");
	unsetenv("VGPU_MALLOCS");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_create(&thread, NULL, tell, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
