/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endcapture.c - captures that end without cuStreamEndCapture.
 *
 *   endcapture destroy|reset|release|thread|streams|twice
 *
 * Captures begin and end, then a pool keeps 3 GiB that the program has freed, and 3 GiB of no pool
 * are taken. destroy, reset, release: the context of the captured stream ends so. thread: a thread
 * captures its default stream and ends. streams: 100 streams are captured at once and destroyed.
 * twice: a capture ends with its context while another one goes on, which ends later.
 *
 * Prints the first error of these calls, and that of the last allocation.
 */
#include <pthread.h>
#include <stdint.h>

#include "calls.h"

#define BYTES (3ull << 30)
#define RELEASE_THRESHOLD 4
#define THREAD_LOCAL 1
#define RELAXED 2
#define STREAMS 100

static CUresult begin(CUstream *stream)
{
	CUresult r = TRY(cuStreamCreate, stream, 1u);

	return r ? r : TRY(cuStreamBeginCapture_v2, *stream, RELAXED);
}

static CUresult own_context(void)
{
	CUcontext ctx;
	CUstream stream;
	CUresult r = TRY(cuCtxCreate_v2, &ctx, 0u, 0);

	r = r ? r : begin(&stream);
	return r ? r : TRY(cuCtxDestroy_v2, ctx);
}

static CUresult primary_context(int reset)
{
	CUcontext ctx;
	CUstream stream;
	CUresult r = TRY(cuDevicePrimaryCtxRetain, &ctx, 0);

	r = r ? r : TRY(cuCtxPushCurrent_v2, ctx);
	r = r ? r : begin(&stream);
	r = r ? r : TRY(cuCtxPopCurrent_v2, &ctx);
	if (!r && reset)
		r = TRY(cuDevicePrimaryCtxReset_v2, 0);
	return r ? r : TRY(cuDevicePrimaryCtxRelease_v2, 0);
}

static void *captures(void *ctx)
{
	CUresult r = TRY(cuCtxSetCurrent, (CUcontext)ctx);

	r = r ? r : TRY(cuStreamBeginCapture_v2, CU_STREAM_PER_THREAD, THREAD_LOCAL);
	return (void *)(uintptr_t)r;
}

static CUresult thread(CUcontext ctx)
{
	pthread_t id;
	void *r;

	if (pthread_create(&id, NULL, captures, ctx) || pthread_join(id, &r))
		return 998;
	return (CUresult)(uintptr_t)r;
}

static CUresult streams(void)
{
	CUstream stream[STREAMS];
	CUresult r = 0;

	for (int i = 0; i < STREAMS && !r; i++)
		r = begin(&stream[i]);
	for (int i = 0; i < STREAMS && !r; i++)
		r = TRY(cuStreamDestroy_v2, stream[i]);
	return r;
}

static CUresult twice(void)
{
	CUstream stream;
	CUgraph graph;
	CUresult r = begin(&stream);

	r = r ? r : own_context();
	return r ? r : TRY(cuStreamEndCapture, stream, &graph);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	uint64_t all = ~0ull;
	CUmemoryPool pool;
	CUstream stream;
	CUcontext ctx;
	CUdeviceptr p;
	CUresult r, last;

	cuda = library("", "libcuda.so.1");
	if (!cuda || TRY(cuInit, 0u) || TRY(cuCtxCreate_v2, &ctx, 0u, 0))
		return 3;
	r = strcmp(how, "destroy") == 0   ? own_context()
	    : strcmp(how, "reset") == 0   ? primary_context(1)
	    : strcmp(how, "release") == 0 ? primary_context(0)
	    : strcmp(how, "thread") == 0  ? thread(ctx)
	    : strcmp(how, "streams") == 0 ? streams()
					  : twice();
	r = r ? r : TRY(cuCtxSetCurrent, ctx);
	r = r ? r : TRY(cuStreamCreate, &stream, 1u);
	r = r ? r : TRY(cuDeviceGetDefaultMemPool, &pool, 0);
	r = r ? r : TRY(cuMemPoolSetAttribute, pool, RELEASE_THRESHOLD, &all);
	r = r ? r : TRY(cuMemAllocAsync, &p, (size_t)BYTES, stream);
	r = r ? r : TRY(cuMemFreeAsync, p, stream);
	r = r ? r : TRY(cuStreamSynchronize, stream);
	last = TRY(cuMemAlloc_v2, &p, (size_t)BYTES);
	printf("{\"first\":%d,\"last\":%d}\n", r, last);
	return 0;
}
