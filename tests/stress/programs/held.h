/* SPDX-License-Identifier: Apache-2.0 */
/* held.h - a function for cuLaunchHostFunc that holds its stream until let_go(). */
#ifndef VGPU_HELD_H
#define VGPU_HELD_H

#include <unistd.h>

static int gone;

static void hold(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&gone, __ATOMIC_RELAXED))
		usleep(1000);
}

static void let_go(void)
{
	__atomic_store_n(&gone, 1, __ATOMIC_RELAXED);
}
#endif
