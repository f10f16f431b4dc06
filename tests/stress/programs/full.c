/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.c - a thread waits for room in a full stream, which waits for another thread of the
 * process; that one launches in another stream first.
 *
 *   full [launch|copy|held]
 *
 * launch: a kernel of another stream (default). copy: a copy to the host, which does not wait for the full
 * stream. held: kernels of another stream that are so long that the second waits at the gate.
 *
 * The stream is filled to each length around its size, so that another call finds it full in each
 * round. Killed after 20 s; prints how many rounds there were.
 */
#include <pthread.h>
#include <unistd.h>

#include "kernels.h"

#define ROOM 1024 /* entries of a stream */
#define LONG_UNITS (6000000 / NS_PER_UNIT)

static struct kernels k;
static CUcontext ctx;
static CUresult (*set_current)(CUcontext), (*record)(CUevent, CUstream);
static CUresult (*wait_value)(CUstream, CUdeviceptr, uint32_t, unsigned);
static CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);
static CUdeviceptr memory;
static CUevent event;
static volatile unsigned *flag;
static unsigned entries, done;
static CUresult (*to_card)(CUdeviceptr, const void *, size_t, CUstream);

static void *filling(void *unused)
{
	(void)unused;
	if (set_current(ctx) || wait_value(k.stream, (CUdeviceptr)(uintptr_t)flag, 1, 0) ||
	    !kernels_launch(&k, 1, 50))
		return NULL;
	/* Too small to be looked at. */
	for (unsigned i = 0; i < entries; i++)
		if (fill(memory, 0, 16, k.stream))
			return NULL;
	/* Ends a batch of work. */
	if (record(event, k.stream) == 0)
		__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The same, with a launch near the end. The library counts it, and does not see the copies. */
static void *copying(void *unused)
{
	static const char host[16];

	(void)unused;
	if (set_current(ctx) || wait_value(k.stream, (CUdeviceptr)(uintptr_t)flag, 1, 0))
		return NULL;
	for (unsigned i = 0; i < entries; i++)
		if ((i == ROOM - 32 && !kernels_launch(&k, 1, 50)) ||
		    to_card(memory, host, sizeof host, k.stream))
			return NULL;
	__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	return NULL;
}

static struct kernels other;
static CUresult (*to_host)(void *, CUdeviceptr, size_t);

/* What the thread calls before it writes the value. Returns 0 if that worked. */
static int between(const char *how)
{
	char byte;

	if (strcmp(how, "copy") == 0)
		return (int)to_host(&byte, memory, 1);
	if (strcmp(how, "held") == 0)
		return !kernels_launch(&other, 2, LONG_UNITS) ||
		       !kernels_launch(&other, 2, LONG_UNITS);
	return !kernels_launch(&other, 1, 50) || other.wait_for(other.stream);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "launch";
	int copies = strcmp(how, "launch") != 0;
	void *cuda = library("", "libcuda.so.1");
	CUresult (*alloc_host)(void **, size_t, unsigned), (*alloc)(CUdeviceptr *, size_t);
	CUresult (*create_stream)(CUstream *, unsigned), (*create_event)(CUevent *, unsigned);
	CUresult (*get_current)(CUcontext *);
	int failed = kernels_open(&k, ""), rounds = 0;
	pthread_t t;

	if (failed)
		return failed;
	set_current = needed(cuda, "cuCtxSetCurrent");
	get_current = needed(cuda, "cuCtxGetCurrent");
	record = needed(cuda, "cuEventRecord");
	wait_value = needed(cuda, "cuStreamWaitValue32_v2");
	fill = needed(cuda, "cuMemsetD8Async");
	alloc_host = needed(cuda, "cuMemHostAlloc");
	alloc = needed(cuda, "cuMemAlloc_v2");
	to_host = needed(cuda, "cuMemcpyDtoH_v2");
	to_card = needed(cuda, "cuMemcpyHtoDAsync_v2");
	create_stream = needed(cuda, "cuStreamCreate");
	create_event = needed(cuda, "cuEventCreate");
	if (!set_current || !get_current || !record || !wait_value || !fill || !alloc_host ||
	    !alloc || !to_host || !to_card || !create_stream || !create_event)
		return 2;
	other = k;
	if (get_current(&ctx) || alloc_host((void **)&flag, sizeof *flag, 3) ||
	    alloc(&memory, 4096) || create_stream(&k.stream, 1) ||
	    create_stream(&other.stream, 1) || create_event(&event, 0))
		return 3;
	/* What a kernel costs is known then. */
	for (int i = 0; i < 50; i++)
		if (!kernels_launch(&k, 1, 50) || k.wait_for(k.stream))
			return 4;
	if (!kernels_launch(&other, 2, LONG_UNITS) || other.wait_for(other.stream))
		return 4;
	alarm(20);
	for (entries = ROOM - (copies ? 24 : 8); entries < ROOM + 2; entries++, rounds++) {
		*flag = 0;
		done = 0;
		if (pthread_create(&t, NULL, copies ? copying : filling, NULL))
			return 5;
		for (int i = 0; i < 200 && !__atomic_load_n(&done, __ATOMIC_ACQUIRE); i++)
			usleep(copies ? 10 : 100);
		if (between(how))
			return 6;
		*flag = 1;
		pthread_join(t, NULL);
		if (!done || k.wait_for(k.stream))
			return 7;
	}
	printf("{\"rounds\":%d}\n", rounds);
	return 0;
}
