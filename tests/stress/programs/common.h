/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - what the stress programs share: options, a clock, libraries. */
#ifndef STRESS_COMMON_H
#define STRESS_COMMON_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The value behind an option; dflt where it is not given. */
static inline const char *opt(int argc, char **argv, const char *name, const char *dflt)
{
	for (int i = 1; i + 1 < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return argv[i + 1];
	return dflt;
}

/* CLOCK_MONOTONIC in seconds. */
static inline double now_s(void)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts); /* no clock of a preload */
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* A library of a folder; of the loader's choice where that is "". */
static inline void *library(const char *dir, const char *name)
{
	char path[512];

	snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", name);
	return dlopen(path, RTLD_NOW);
}

#endif
