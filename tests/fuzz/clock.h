/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - a clock that only sleeping moves: region_ops.c under test waits for the
 * memory of dead processes, and thousands of tries shall not. */
#ifndef FUZZ_CLOCK_H
#define FUZZ_CLOCK_H

#define _GNU_SOURCE /* this file comes before the first line of each source */

#include <time.h>

int fuzz_nanosleep(const struct timespec *t, struct timespec *left);
int fuzz_clock_gettime(clockid_t clock, struct timespec *t);

#define nanosleep fuzz_nanosleep
#define clock_gettime fuzz_clock_gettime

#endif
