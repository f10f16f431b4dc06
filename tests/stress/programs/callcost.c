/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callcost.c - what single driver calls cost without and with a preload library.
 *
 *   callcost --lib LIBRARY [--rounds 7] [--libdir DIR] [--limit BYTES]
 *
 * The machine drifts, so the two are run in turn, each in a process of its own,
 * and every call's median over the rounds' medians is printed: nanoseconds
 * without, with, and the difference. One JSON line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define CALLS 8
#define MAX_ROUNDS 50
#define MAX_SAMPLES 20000

static const char *const names[CALLS] = {"alloc_64k",        "free_64k",    "alloc_2m",
					 "free_2m",          "async_1m",    "free_async",
					 "get_proc_address", "mem_get_info"};
static double sample[CALLS][MAX_SAMPLES];

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, ascending);
	return v[n / 2];
}

#define TIMED(call_index, i, call)                     \
	do {                                           \
		double t_ = now_ns();                  \
		if (call)                              \
			return 4;                      \
		sample[call_index][i] = now_ns() - t_; \
	} while (0)

static int child(const char *libdir)
{
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t), (*release)(CUdeviceptr), (*sync_ctx)(void);
	CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream),
		(*free_async)(CUdeviceptr, CUstream);
	CUresult (*get_proc)(const char *, void **, int, uint64_t, int *);
	CUresult (*get_info)(size_t *, size_t *);
	size_t free_bytes, total_bytes;
	CUdeviceptr p;
	CUcontext ctx;
	void *cuda, *fn;
	int status;

	cuda = library(libdir, "libcuda.so.1");
	if (!cuda)
		return 1;
	*(void **)&init = dlsym(cuda, "cuInit");
	*(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	*(void **)&set_current = dlsym(cuda, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(cuda, "cuMemAlloc_v2");
	*(void **)&release = dlsym(cuda, "cuMemFree_v2");
	*(void **)&sync_ctx = dlsym(cuda, "cuCtxSynchronize");
	*(void **)&alloc_async = dlsym(cuda, "cuMemAllocAsync");
	*(void **)&free_async = dlsym(cuda, "cuMemFreeAsync");
	*(void **)&get_proc = dlsym(cuda, "cuGetProcAddress_v2");
	*(void **)&get_info = dlsym(cuda, "cuMemGetInfo_v2");
	if (!init || !retain || !set_current || !alloc || !release || !sync_ctx || !alloc_async ||
	    !free_async || !get_proc || !get_info)
		return 2;
	if (init(0) || retain(&ctx, 0) || set_current(ctx))
		return 3;
	for (int i = 0; i < 1500; i++) {
		TIMED(0, i, alloc(&p, 64 << 10));
		TIMED(1, i, release(p));
		TIMED(2, i, alloc(&p, 2 << 20));
		TIMED(3, i, release(p));
	}
	/* The pool's first growth is not what is measured. */
	if (alloc_async(&p, 1 << 20, NULL) || free_async(p, NULL))
		return 4;
	for (int i = 0; i < 5000; i++) {
		TIMED(4, i, alloc_async(&p, 1 << 20, NULL));
		TIMED(5, i, free_async(p, NULL));
		TIMED(6, i, get_proc("cuMemAlloc", &fn, 12000, 0, &status));
	}
	for (int i = 0; i < 1500; i++)
		TIMED(7, i, get_info(&free_bytes, &total_bytes));
	for (int c = 0; c < CALLS; c++)
		printf("%.1f ", median(sample[c], c < 4 || c == 7 ? 1500 : 5000));
	printf("\n");
	return 0;
}

/* One process; its medians go to out. */
static int measure(const char *self, const char *libdir, const char *lib, double out[CALLS])
{
	int pipe_fd[2], status, ok = 0;
	pid_t pid;
	FILE *f;

	if (pipe(pipe_fd))
		return -1;
	pid = fork();
	if (pid == 0) {
		dup2(pipe_fd[1], 1);
		if (*lib)
			setenv("LD_PRELOAD", lib, 1);
		execl(self, "callcost", "--child", libdir, (char *)NULL);
		_exit(9);
	}
	close(pipe_fd[1]);
	f = fdopen(pipe_fd[0], "r");
	while (f && ok < CALLS && fscanf(f, "%lf", &out[ok]) == 1)
		ok++;
	if (f)
		fclose(f);
	waitpid(pid, &status, 0);
	return ok == CALLS && status == 0 ? 0 : -1;
}

int main(int argc, char **argv)
{
	static double native[CALLS][MAX_ROUNDS], with[CALLS][MAX_ROUNDS];
	int rounds = atoi(opt(argc, argv, "--rounds", "7"));
	const char *lib = opt(argc, argv, "--lib", ""), *libdir = opt(argc, argv, "--libdir", "");
	char self[512] = {0};
	double one[CALLS];

	if (argc > 2 && strcmp(argv[1], "--child") == 0)
		return child(argv[2]);
	if (!*lib || rounds < 1 || rounds > MAX_ROUNDS ||
	    readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
		fprintf(stderr, "callcost: want --lib LIBRARY and 1 to %d rounds\n", MAX_ROUNDS);
		return 2;
	}
	setenv("CUDA_DEVICE_MEMORY_LIMIT", opt(argc, argv, "--limit", "34359738368"), 1);
	for (int r = 0; r < rounds; r++) {
		for (int l = 0; l < 2; l++) {
			if (measure(self, libdir, l ? lib : "", one)) {
				fprintf(stderr, "callcost: a process failed\n");
				return 1;
			}
			for (int c = 0; c < CALLS; c++)
				(l ? with : native)[c][r] = one[c];
		}
	}
	printf("{\"bench\":\"callcost\",\"rounds\":%d", rounds);
	for (int c = 0; c < CALLS; c++) {
		double n = median(native[c], rounds), w = median(with[c], rounds);

		printf(",\"%s\":[%.0f,%.0f,%+.0f]", names[c], n, w, w - n);
	}
	printf("}\n");
	return 0;
}
