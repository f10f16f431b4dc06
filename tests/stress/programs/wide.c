/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wide.c - a libcuda whose card is so wide that all streams run beside each other, which they do
 * not on the simulated card. A kernel takes as many microseconds as its grid is wide. It has what
 * beside.c and libvgpu call.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define STREAMS 8
#define KERNELS_MAX (1u << 20)

struct span {
	double begin, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double tail[STREAMS + 1]; /* when what is in a stream has ended; the default one is 0 */
static struct span spans[KERNELS_MAX];
static unsigned kernels;
static char context;

static double *tail_of(CUstream stream)
{
	return &tail[(uintptr_t)stream % (STREAMS + 1)];
}

static int by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Seconds in which any kernel ran; *sum: of all kernels. */
double wide_busy(double *sum)
{
	double busy = 0, end = 0;

	*sum = 0;
	qsort(spans, kernels, sizeof *spans, by_begin);
	for (unsigned i = 0; i < kernels; i++) {
		*sum += spans[i].end - spans[i].begin;
		if (spans[i].end <= end)
			continue;
		busy += spans[i].end - (spans[i].begin > end ? spans[i].begin : end);
		end = spans[i].end;
	}
	return busy;
}

CUresult cuInit(unsigned flags)
{
	return 0;
}

CUresult cuDeviceGetCount(int *n)
{
	*n = 1;
	return 0;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = 0;
	return 0;
}

CUresult cuDeviceGetUuid(void *uuid, CUdevice device)
{
	memset(uuid, 7, 16);
	return 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	*bytes = 80ull << 30;
	return 0;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
	*left = *total = 80ull << 30;
	return 0;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device)
{
	*ctx = (CUcontext)(void *)&context;
	return 0;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	*ctx = (CUcontext)(void *)&context;
	return 0;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return 0;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	return 0;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	*ctx = (CUcontext)(void *)&context;
	return 0;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	*status = 0;
	return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int now;
	int before = now;

	now = *mode;
	*mode = before;
	return 0;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	while (now_s() < *tail_of(stream))
		usleep(20);
	return 0;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	*event = calloc(1, sizeof(double));
	return *event ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	free(event);
	return 0;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	double now = now_s();

	pthread_mutex_lock(&lock);
	*(double *)(void *)event = now > *tail_of(stream) ? now : *tail_of(stream);
	pthread_mutex_unlock(&lock);
	return 0;
}

CUresult cuEventQuery(CUevent event)
{
	return now_s() < *(double *)(void *)event ? CUDA_ERROR_NOT_READY : 0;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	*ms = (float)((*(double *)(void *)to - *(double *)(void *)from) * 1e3);
	return 0;
}

CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
			unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
	double now = now_s(), begin;

	pthread_mutex_lock(&lock);
	begin = now > *tail_of(stream) ? now : *tail_of(stream);
	*tail_of(stream) = begin + x * 1e-6;
	if (kernels < KERNELS_MAX)
		spans[kernels++] = (struct span){begin, *tail_of(stream)};
	pthread_mutex_unlock(&lock);
	return 0;
}
