/* SPDX-License-Identifier: Apache-2.0 */
/* util.c - see util.h. */
#include <time.h>

#include "../region_ops.h"
#include "util.h"

uint64_t vgpu_now(void)
{
	struct timespec ts;

	vgpu_clock(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
