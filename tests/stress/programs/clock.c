/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - a preload with a clock that runs ten times as fast, as faketime(1) has, for all but
 * the simulated driver, whose time is the card's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	Dl_info caller;
	int r = (int)syscall(SYS_clock_gettime, clock, ts);
	unsigned long long ns;

	if (r ||
	    (dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libcuda")))
		return r;
	ns = ((unsigned long long)ts->tv_sec * 1000000000u + (unsigned long long)ts->tv_nsec) * 10;
	ts->tv_sec = (time_t)(ns / 1000000000u);
	ts->tv_nsec = (long)(ns % 1000000000u);
	return 0;
}
