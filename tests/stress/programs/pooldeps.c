/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pooldeps.c - an allocation near the limit while another stream has a free to come.
 *
 *   pooldeps full|forbidden
 *
 * full: the allocation's stream is full behind a function that waits for this thread. Another thread
 * allocates there. This thread then frees memory in another stream, and ends the function.
 * forbidden: the pool may not let a stream wait for frees of others. The allocation is refused, and
 * its stream ends while the free is still to come.
 *
 * The program is killed after 30 s. Prints the result of the allocation and of the calls around it.
 */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "calls.h"
#include "held.h"

#define GIB (1ull << 30)
#define ALLOW_INTERNAL_DEPENDENCIES 3
#define ROOM 1024 /* entries of a stream */

static CUcontext ctx;
static CUstream from, to;
static CUresult granted;
static int begins;

static void *allocates(void *unused)
{
	CUdeviceptr p;

	(void)unused;
	granted = TRY(cuCtxSetCurrent, ctx);
	__atomic_store_n(&begins, 1, __ATOMIC_SEQ_CST);
	granted = granted ? granted : TRY(cuMemAllocAsync, &p, (size_t)(2 * GIB), to);
	return NULL;
}

/* a: memory that is freed while the other thread waits. */
static CUresult full(CUdeviceptr a)
{
	CUresult r = TRY(cuLaunchHostFunc, to, hold, NULL);
	CUdeviceptr small;
	pthread_t t;

	r = r ? r : TRY(cuMemAlloc_v2, &small, (size_t)16);
	for (int i = 1; i < ROOM && !r; i++)
		r = TRY(cuMemsetD8Async, small, (unsigned char)0, (size_t)16, to);
	if (r || pthread_create(&t, NULL, allocates, NULL))
		return r ? r : 998;
	while (!__atomic_load_n(&begins, __ATOMIC_SEQ_CST))
		usleep(1000);
	usleep(200000); /* so that it waits for room in the stream by now */
	r = TRY(cuMemFreeAsync, a, from);
	let_go();
	return pthread_join(t, NULL) ? 998 : r;
}

static CUresult forbidden(void)
{
	CUdeviceptr p;

	granted = TRY(cuMemAllocAsync, &p, (size_t)(2 * GIB), to);
	return TRY(cuStreamSynchronize, to);
}

int main(int argc, char **argv)
{
	int forbids = argc > 1 && strcmp(argv[1], "forbidden") == 0, no = 0;
	CUmemoryPool pool;
	CUdeviceptr a, b;
	CUresult r;

	alarm(30);
	cuda = library("", "libcuda.so.1");
	if (!cuda || TRY(cuInit, 0u) || TRY(cuCtxCreate_v2, &ctx, 0u, 0))
		return 3;
	r = TRY(cuStreamCreate, &from, 1u);
	r = r ? r : TRY(cuStreamCreate, &to, 1u);
	r = r ? r : TRY(cuDeviceGetDefaultMemPool, &pool, 0);
	if (forbids)
		r = r ? r : TRY(cuMemPoolSetAttribute, pool, ALLOW_INTERNAL_DEPENDENCIES, &no);
	r = r ? r : TRY(cuMemAllocAsync, &a, (size_t)GIB, from);
	r = r ? r : TRY(cuMemAllocAsync, &b, (size_t)(2 * GIB), from);
	r = r ? r : TRY(cuLaunchHostFunc, from, hold, NULL);
	r = r ? r : TRY(cuMemFreeAsync, b, from);
	r = r ? r : forbids ? forbidden() : full(a);
	let_go();
	r = r ? r : TRY(cuCtxSynchronize);
	printf("{\"granted\":%d,\"last\":%d}\n", granted, r);
	return 0;
}
