/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environ.c - a program that sees who asks for its environment, which another thread of it may be
 * changing: before glibc 2.41 that ends it.
 *
 *   environ [--libdir DIR] [--secs 2]
 *   environ --contexts N
 *
 * Runs kernels. Prints how often libvgpu asked, and how often from a thread of its own. With N: tries to
 * make N contexts after cuInit, and prints how often libvgpu asked in this time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels.h"

extern char **environ;
static atomic_uint asked, by_own_thread;

static char *look(const char *name, const void *caller)
{
	size_t n = strlen(name);
	char thread[16] = "";
	Dl_info info;

	if (dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libvgpu")) {
		asked++;
		pthread_getname_np(pthread_self(), thread, sizeof thread);
		by_own_thread += strncmp(thread, "vgpu-", 5) == 0;
	}
	for (char **e = environ; *e; e++)
		if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
			return *e + n + 1;
	return NULL;
}

char *getenv(const char *name)
{
	return look(name, __builtin_return_address(0));
}

char *secure_getenv(const char *name)
{
	return look(name, __builtin_return_address(0));
}

static int make_contexts(int n)
{
	void *cuda = library("", "libcuda.so.1");
	CUresult (*init)(unsigned) = needed(cuda, "cuInit");
	CUresult (*create)(CUcontext *, unsigned, CUdevice) = needed(cuda, "cuCtxCreate_v2");
	CUcontext ctx;
	unsigned before;

	if (!init || !create || init(0))
		return 2;
	before = asked;
	while (n--)
		create(&ctx, 0, 0);
	printf("{\"before\":%u,\"asked\":%u}\n", before, asked - before);
	return 0;
}

int main(int argc, char **argv)
{
	int contexts = atoi(opt(argc, argv, "--contexts", "0"));

	if (contexts)
		return make_contexts(contexts);
	double secs = atof(opt(argc, argv, "--secs", "2")), began;
	struct kernels k;
	int failed = kernels_open(&k, opt(argc, argv, "--libdir", ""));

	if (failed)
		return failed;
	for (began = now_s(); now_s() - began < secs;)
		if (!kernels_launch(&k, 1, 50000) || k.wait_for(k.stream))
			return 4;
	printf("{\"asked\":%u,\"by_own_thread\":%u}\n", asked, by_own_thread);
	return 0;
}
