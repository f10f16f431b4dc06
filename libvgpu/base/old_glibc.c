/* SPDX-License-Identifier: Apache-2.0 */
/*
 * old_glibc.c - functions of libpthread for a program that was started without
 * it, on a glibc before 2.34.
 */
#ifdef __x86_64__
#define _GNU_SOURCE
#include <errno.h>

#include "dl.h"
#include "old_glibc.h"

static int none(void)
{
	return ENOSYS;
}

void *vgpu_late(const char *name)
{
	void *handle, *found;

	/* Most often it is there by now: libcuda needs it. */
	handle = vgpu_dlopen("libpthread.so.0", RTLD_LAZY);
	found = handle && vgpu_real_dlsym ? vgpu_real_dlsym(handle, name) : NULL;
	return found ? found : (void *)none;
}
#endif
