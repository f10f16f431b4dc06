/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wrap.c - a preload that wraps dlsym, as tools do which look at what a program calls. The next
 * dlsym it finds by the version in WRAP_BY, or, for "libc", in the C library itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *dlsym(void *handle, const char *name)
{
	static void *(*next)(void *, const char *);
	const char *by = getenv("WRAP_BY");

	if (!next && by)
		next = (void *(*)(void *, const char *))(
			strcmp(by, "libc") == 0
				? dlvsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym", "GLIBC_2.2.5")
				: dlvsym(RTLD_NEXT, "dlsym", by));
	return next ? next(handle, name) : NULL;
}
