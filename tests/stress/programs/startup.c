/* SPDX-License-Identifier: Apache-2.0 */
/*
 * startup.c - many short processes: from start to the end of the first work on
 * the card, without and with a preload library, in the same run.
 *
 *   startup [--lib LIBRARY] [--count N] [--parallel P] [--libdir DIR]
 *           [--limit BYTES] [--cache FILE]
 *
 * Starts N processes, P at a time, each with a context, an allocation and a
 * fill; one JSON line with median, p99 and maximum in milliseconds. Exit status
 * 1 when a process failed.
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

#define MAX_PARALLEL 1024

static double now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

/* 0, or which step failed. */
static int child(const char *libdir)
{
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t), (*fill)(CUdeviceptr, unsigned char, size_t);
	CUresult (*sync_ctx)(void);
	char path[512];
	CUdeviceptr p;
	CUcontext ctx;
	void *cuda;

	snprintf(path, sizeof path, "%s%slibcuda.so.1", libdir, *libdir ? "/" : "");
	cuda = dlopen(path, RTLD_NOW);
	if (!cuda)
		return 1;
	*(void **)&init = dlsym(cuda, "cuInit");
	*(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
	*(void **)&set_current = dlsym(cuda, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(cuda, "cuMemAlloc_v2");
	*(void **)&fill = dlsym(cuda, "cuMemsetD8_v2");
	*(void **)&sync_ctx = dlsym(cuda, "cuCtxSynchronize");
	if (!init || !retain || !set_current || !alloc || !fill || !sync_ctx)
		return 2;
	if (init(0))
		return 3;
	if (retain(&ctx, 0) || set_current(ctx))
		return 4;
	if (alloc(&p, 1 << 20))
		return 5;
	return fill(p, 1, 1 << 20) || sync_ctx() ? 6 : 0;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	int count = atoi(opt(argc, argv, "--count", "100")), started = 0, ended = 0, failed = 0;
	int parallel = atoi(opt(argc, argv, "--parallel", "1")), running = 0, steps[8] = {0};
	const char *lib = opt(argc, argv, "--lib", ""), *libdir = opt(argc, argv, "--libdir", "");
	static struct {
		pid_t pid;
		double at;
	} live[MAX_PARALLEL];
	double *ms, begin;
	char self[512] = {0};

	if (argc > 2 && strcmp(argv[1], "--child") == 0)
		return child(argv[2]);
	if (parallel < 1 || parallel > MAX_PARALLEL || count < 1 ||
	    readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 2;
	ms = calloc((size_t)count, sizeof *ms);
	if (!ms)
		return 2;
	if (*lib) {
		setenv("CUDA_DEVICE_MEMORY_LIMIT", opt(argc, argv, "--limit", "137438953472"), 1);
		setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE",
		       opt(argc, argv, "--cache", "/tmp/startup.cache"), 1);
		unlink(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
	}
	begin = now_ms();
	while (ended < count) {
		int status, i;
		pid_t pid;

		while (running < parallel && started < count) {
			for (i = 0; live[i].pid; i++)
				;
			live[i].at = now_ms();
			pid = fork();
			if (pid == 0) {
				if (*lib)
					setenv("LD_PRELOAD", lib, 1);
				execl(self, "startup", "--child", libdir, (char *)NULL);
				_exit(7);
			}
			live[i].pid = pid;
			started++;
			running++;
		}
		pid = waitpid(-1, &status, 0);
		for (i = 0; i < MAX_PARALLEL && live[i].pid != pid; i++)
			;
		if (i == MAX_PARALLEL)
			continue;
		ms[ended++] = now_ms() - live[i].at;
		live[i].pid = 0;
		running--;
		if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			failed++;
			steps[WIFEXITED(status) ? WEXITSTATUS(status) & 7 : 0]++;
		}
	}
	begin = now_ms() - begin;
	qsort(ms, (size_t)count, sizeof *ms, ascending);
	printf("{\"bench\":\"startup\",\"lib\":\"%s\",\"count\":%d,\"parallel\":%d,\"failed\":%d,"
	       "\"median_ms\":%.1f,\"p99_ms\":%.1f,\"max_ms\":%.1f,\"total_s\":%.2f,"
	       "\"failed_at\":[%d,%d,%d,%d,%d,%d,%d,%d]}\n",
	       lib, count, parallel, failed, ms[count / 2], ms[count * 99 / 100], ms[count - 1],
	       begin / 1e3, steps[0], steps[1], steps[2], steps[3], steps[4], steps[5], steps[6],
	       steps[7]);
	free(ms);
	return failed ? 1 : 0;
}
