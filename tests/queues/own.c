/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.c - a program that brings a libEGL along, as browsers do, finds that one's functions in it, also
 * where the system's is loaded: prints in which libraries it finds them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *where(void *lib)
{
	void *function = lib ? dlsym(lib, "eglSwapBuffers") : NULL;
	const char *error = dlerror();
	Dl_info info;

	if (error || !function || !dladdr(function, &info))
		return error ? error : "nowhere";
	return strrchr(info.dli_fname, '/') + 1;
}

/* own PATH: of what it brings along. */
int main(int argc, char **argv)
{
	void *own = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW);
	const char *alone = where(own);
	void *systems = dlopen("libEGL.so.1", RTLD_NOW);

	printf("{\"alone\":\"%s\",\"own\":\"%s\",\"systems\":\"%s\"}\n", alone, where(own),
	       where(systems));
	return 0;
}
