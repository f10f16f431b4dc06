// SPDX-License-Identifier: Apache-2.0
/* work.c - cases about streams, events and launches. */
#define _GNU_SOURCE
#include "apitest.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

void case_event_time(void)
{
	CUevent a, b, c;
	CUfunction f;
	float ms;

	start();
	f = function("us");
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&c, CU_EVENT_DISABLE_TIMING));
	OK(cuEventQuery(a));    /* never recorded: complete */
	run_us(f, 10000, NULL); /* the card is busy while the host launches the rest */
	OK(cuEventRecord(a, NULL));
	for (int i = 0; i < 10; i++)
		run_us(f, 3000, NULL);
	OK(cuEventRecord(b, NULL));
	OK(cuEventRecord(c, NULL));
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	EQ(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
	EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(b));
	OK(cuEventQuery(b));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 30000, 30100); /* ten gaps of 1 us, one latency of 4 us, the calls */
	EQ(cuEventElapsedTime(&ms, a, c), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventDestroy_v2(b));
	OK(cuEventRecord(a, NULL));
	OK(cuEventDestroy_v2(a)); /* with its mark still queued */
	OK(cuCtxSynchronize());
}

/* Work of one stream keeps its order; other streams go on meanwhile. */
void case_stream_order(void)
{
	CUevent e[4];
	CUstream s, t;
	CUfunction f;
	float ab, ac;

	start();
	f = function("us");
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	for (int i = 0; i < 4; i++)
		OK(cuEventCreate(&e[i], 0));
	OK(cuEventRecord(e[0], s));
	run_us(f, 2000, s);
	OK(cuEventRecord(e[1], s));
	run_us(f, 2000, s);
	OK(cuEventRecord(e[2], s));
	run_us(f, 1000, t);
	OK(cuStreamDestroy_v2(t)); /* returns at once; the work goes on */
	OK(cuCtxSynchronize());
	OK(cuEventElapsedTime(&ab, e[0], e[1]));
	OK(cuEventElapsedTime(&ac, e[0], e[2]));
	WITHIN(ab * 1000, 2000, 2100);
	WITHIN(ac * 1000, 4000, 5200);
	EQ(cuStreamQuery(t), CUDA_ERROR_INVALID_HANDLE);
}

void case_default_stream(void)
{
	CUstream blocking, free_stream;
	CUevent a, b, c;
	CUfunction f;
	float ms;

	start();
	f = function("us");
	OK(cuStreamCreate(&blocking, 0));
	OK(cuStreamCreate(&free_stream, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&c, 0));
	OK(cuEventRecord(a, blocking));
	run_us(f, 5000, blocking);
	OK(cuEventRecord(b, NULL));        /* the default stream waits for blocking streams */
	OK(cuEventRecord(c, free_stream)); /* which this one is not */
	EQ(cuEventSynchronize(c), 0);
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 5000, 5100);
	OK(cuEventElapsedTime(&ms, a, c));
	TOOK_US(ms * 1000, 0, 1000);
	run_us(f, 3000, NULL);
	OK(cuEventRecord(a, blocking)); /* and they wait for it */
	OK(cuEventSynchronize(a));
	OK(cuEventElapsedTime(&ms, b, a));
	TOOK_US(ms * 1000, 3000, 6000);
}

void case_wait_event(void)
{
	CUevent a, b, c;
	CUstream s, t;
	CUfunction f;
	float ms;

	start();
	f = function("us");
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&c, 0));
	OK(cuEventRecord(a, s));
	run_us(f, 5000, s);
	OK(cuEventRecord(b, s));
	OK(cuStreamWaitEvent(t, b, 0));
	OK(cuEventRecord(c, t));
	EQ(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
	OK(cuStreamSynchronize(t));
	OK(cuEventElapsedTime(&ms, a, c));
	TOOK_US(ms * 1000, 5000, 5100);
}

static int host_ran;

static void host_fn(void *data)
{
	(void)data;
	sleep_ms(20);
	STORE(&host_ran, 1);
}

static void callback(CUstream s, CUresult rc, void *data)
{
	(void)s;
	STORE((int *)data, rc == CUDA_SUCCESS ? 2 : 3);
}

void case_host_function(void)
{
	int called = 0;
	CUevent a, b;
	CUstream s, t;
	float ms;

	start();
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventRecord(a, s));
	OK(cuLaunchHostFunc(s, host_fn, NULL));
	OK(cuEventRecord(b, s));
	run_us(function("us"), 100, t);
	OK(cuStreamSynchronize(t)); /* other streams do not wait */
	EQ(LOAD(&host_ran), 0);
	sleep_ms(60); /* no call by this thread */
	EQ(LOAD(&host_ran), 1);
	OK(cuStreamSynchronize(s));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 20000, 200000);
	OK(cuStreamAddCallback(s, callback, &called, 0));
	OK(cuStreamSynchronize(s));
	EQ(LOAD(&called), 2);
}

void case_write_value(void)
{
	uint32_t *flag;
	CUdeviceptr d, p;
	CUfunction f;
	void *h;

	start();
	f = function("us");
	OK(cuMemHostAlloc(&h, 4096, 2));
	OK(cuMemHostGetDevicePointer_v2(&d, h, 0));
	flag = h;
	run_us(f, 20000, NULL);
	OK(cuStreamWriteValue32_v2(NULL, d, 42, 0));
	OK(cuStreamWriteValue64_v2(NULL, d + 8, 1ull << 40, 0));
	EQ(LOAD(flag), 0);
	for (int i = 0; i < 100 && LOAD((uint64_t *)(flag + 2)) != 1ull << 40; i++)
		sleep_ms(1); /* seen without any call */
	EQ(LOAD(flag), 42);
	EQ(LOAD((uint64_t *)(flag + 2)), 1ull << 40);
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuStreamWriteValue32_v2(NULL, p, 9, 0));
	OK(cuMemcpyDtoH_v2(h, p, 4));
	EQ(LOAD(flag), 9);
	EQ(cuStreamWriteValue32_v2(NULL, p + 1, 9, 0), CUDA_ERROR_INVALID_VALUE);
}

void case_wait_value(void)
{
	uint32_t *flag;
	CUstream s;
	void *h;

	start();
	OK(cuStreamCreate(&s, 1));
	OK(cuMemHostAlloc(&h, 4096, 2));
	flag = h;
	OK(cuStreamWaitValue32_v2(s, (uintptr_t)h, 5, 0)); /* >= 5 */
	OK(cuStreamWriteValue32_v2(s, (uintptr_t)h + 4, 1, 0));
	STORE(flag, 4);
	sleep_ms(20);
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	EQ(LOAD(flag + 1), 0);
	STORE(flag, 5);
	OK(cuStreamSynchronize(s));
	EQ(LOAD(flag + 1), 1);
}

void case_counter(void)
{
	unsigned us = 100;
	uint32_t *n;
	CUfunction f;
	void *h;
	void *params[] = {&us, &h};

	start();
	f = function("counted");
	OK(cuMemHostAlloc(&h, 4096, 2));
	n = h;
	for (int i = 0; i < 200; i++)
		OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	for (int i = 0; i < 2000 && LOAD(n) < 100; i++)
		sleep_ms(1);
	TRUE(LOAD(n) >= 100);
	OK(cuCtxSynchronize());
	EQ(LOAD(n), 200);
}

void case_spin(void)
{
	uint32_t *flag;
	CUevent a, b;
	CUfunction f;
	float ms;
	void *h;
	void *params[] = {&h};

	start();
	f = function("spin");
	OK(cuMemHostAlloc(&h, 4096, 2));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	flag = h;
	OK(cuEventRecord(a, NULL));
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	OK(cuEventRecord(b, NULL));
	sleep_ms(30);
	EQ(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	STORE(flag, 1);
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 30000, 500000);
}

/* More work than a stream holds: the launch waits, as on a real card. */
void case_full_stream(void)
{
	CUfunction f;
	CUevent a, b;
	float ms;

	start();
	f = function("us");
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventRecord(a, NULL));
	for (int i = 0; i < 3000; i++)
		run_us(f, 19, NULL);
	OK(cuEventRecord(b, NULL));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 60000, 61000);
}

void case_launches(void)
{
	CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
	unsigned us = 1000;
	void *params[] = {&us};
	size_t n = sizeof(us);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &us, CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
			 NULL};
	CUDA_LAUNCH_PARAMS list = {NULL, 1, 1, 1, 32, 1, 1, 0, NULL, params};
	CUlibrary lib;
	CUkernel k;
	CUevent a, b;
	CUfunction f;
	float ms;

	start();
	f = list.function = function("us");
	OK(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&k, lib, "us"));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventRecord(a, NULL));
	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
	OK(cuLaunchKernelEx(&c, f, params, NULL));
	OK(cuLaunchKernelEx_ptsz(&c, f, params, NULL));
	OK(cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params));
	OK(cuLaunchCooperativeKernelMultiDevice(&list, 1, 0));
	OK(cuFuncSetBlockShape(f, 32, 1, 1));
	OK(cuParamSetSize(f, 4));
	OK(cuParamSeti(f, 0, us));
	OK(cuLaunch(f));
	OK(cuLaunchGrid(f, 1, 1));
	OK(cuLaunchGridAsync(f, 1, 1, NULL));
	OK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	EQ(cuLaunchKernel(f, 0, 1, 1, 32, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuEventRecord(b, NULL));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 9000, 9300); /* nine kernels */
}

static void *many_launches(void *ctx)
{
	CUstream s;

	OK(cuCtxSetCurrent(ctx));
	OK(cuStreamCreate(&s, 1));
	for (int i = 0; i < 300; i++) {
		CUdeviceptr p;

		OK(cuMemAlloc_v2(&p, 4096));
		run_us(function("us"), 20, s);
		OK(cuStreamSynchronize(s));
		OK(cuMemFree_v2(p));
	}
	OK(cuStreamDestroy_v2(s));
	return NULL;
}

void case_threads(void)
{
	pthread_t t[4];
	CUcontext ctx = start();
	size_t before;

	function("us");
	before = free_bytes();
	for (int i = 0; i < 4; i++)
		EQ(pthread_create(&t[i], NULL, many_launches, ctx), 0);
	for (int i = 0; i < 4; i++)
		EQ(pthread_join(t[i], NULL), 0);
	OK(cuCtxSynchronize());
	EQ(free_bytes(), before);
}

void case_per_thread(void)
{
	CUevent a, b;
	CUfunction f;
	unsigned long long legacy, own;

	start();
	f = function("us");
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuStreamGetId(NULL, &legacy));
	OK(cuStreamGetId_ptsz(NULL, &own));
	TRUE(legacy != own);
	OK(cuStreamGetId(CU_STREAM_PER_THREAD, &legacy));
	EQ(legacy, own);
	OK(cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&(unsigned){10000}}, NULL));
	OK(cuEventRecord_ptsz(a, NULL));
	OK(cuStreamSynchronize_ptsz(NULL));
	OK(cuEventQuery(a));
}
