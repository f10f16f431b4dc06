/* SPDX-License-Identifier: Apache-2.0 */
/* async.c - stream-ordered allocation: which pool a call takes from, and whether it
 * takes at all. */
#include "async.h"
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "booking.h"
#include "linear.h"
#include "pool.h"

/* A captured allocation becomes a node of a graph and is charged there. What is not surely
 * captured is charged here: where the driver cannot say, as of the legacy stream beside a
 * capture that it would wait for, it does not allocate. */
static bool captured(CUstream stream)
{
	return vgpu_capturing() && vgpu_captured(stream, false);
}

/* The device of a stream; of the current context for the default ones. */
static bool device_of(CUstream stream, CUdevice *dev)
{
	if (__atomic_load_n(&vgpu_only_card, __ATOMIC_RELAXED) >= 0) {
		*dev = 0;
		return true;
	}
	if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
	    vgpu_real.cuStreamGetDevice)
		return vgpu_real.cuStreamGetDevice(stream, dev) == CUDA_SUCCESS;
	return vgpu_real.cuCtxGetDevice(dev) == CUDA_SUCCESS;
}

/* The current pool of each device, or NULL: to be asked for, which costs as much as
 * the rest of an allocation. Forgotten whenever it may have changed. */
#define MAX_CURRENT 64
static struct pool *current[MAX_CURRENT];
static uint32_t changes; /* of it; under vgpu_pools_lock */

void vgpu_pools_forget_current(void)
{
	pthread_mutex_lock(&vgpu_pools_lock);
	__atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < MAX_CURRENT; i++)
		__atomic_store_n(&current[i], NULL, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&vgpu_pools_lock);
}

static struct pool *ask_current(CUdevice dev)
{
	uint32_t before = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
	CUmemoryPool handle = NULL;
	struct pool *p;
	int card = vgpu_card_of_device(dev);

	if (card < 0 || !vgpu_real.cuDeviceGetMemPool ||
	    vgpu_real.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS || !handle)
		return NULL;
	p = vgpu_pool_of(handle, card);
	pthread_mutex_lock(&vgpu_pools_lock);
	/* Else the answer may be older than the change. */
	if (before == changes && dev >= 0 && dev < MAX_CURRENT)
		__atomic_store_n(&current[dev], p, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&vgpu_pools_lock);
	return p;
}

/* The pool that cuMemAllocAsync takes from: the current one of the stream's
 * device. */
static struct pool *current_pool(CUstream stream)
{
	struct pool *p = NULL;
	CUdevice dev;

	if (!device_of(stream, &dev))
		return NULL;
	if (likely(dev >= 0 && dev < MAX_CURRENT))
		p = __atomic_load_n(&current[dev], __ATOMIC_ACQUIRE);
	return likely(p != NULL) ? p : ask_current(dev);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	CUresult r;

	VGPU_NEED_CUDA(cuDeviceSetMemPool);
	r = vgpu_real.cuDeviceSetMemPool(dev, pool);
	vgpu_pools_forget_current();
	return r;
}

CUresult cuMemSetMemPool(const CUmemLocation *location, int type, CUmemoryPool pool)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemSetMemPool);
	r = vgpu_real.cuMemSetMemPool(location, type, pool);
	vgpu_pools_forget_current();
	return r;
}

/* A pool that is named. Default pools are not created by anybody we see. */
static struct pool *named_pool(CUmemoryPool handle)
{
	struct pool *p = handle ? vgpu_pool_of(handle, -1) : NULL;
	CUmemoryPool dflt = NULL;
	int n = 0;

	if (p || !handle || !vgpu_real.cuDeviceGetDefaultMemPool || !vgpu_real.cuDeviceGetCount ||
	    vgpu_real.cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return p;
	for (CUdevice dev = 0; dev < n; dev++)
		if (vgpu_real.cuDeviceGetDefaultMemPool(&dflt, dev) == CUDA_SUCCESS &&
		    dflt == handle)
			return vgpu_pool_of(handle, vgpu_card_of_device(dev));
	return NULL;
}

#define ALLOC_ASYNC(name, params, per_thread, pool_expr, call)                             \
	CUresult name params                                                               \
	{                                                                                  \
		CUstream stream_used;                                                      \
		struct vgpu_booking b;                                                     \
		struct pool *p;                                                            \
		CUresult r;                                                                \
                                                                                           \
		VGPU_NEED_CUDA(name);                                                      \
		stream_used = vgpu_stream(stream, per_thread);                             \
		p = vgpu_state.grant && dptr && !captured(stream_used) ? pool_expr : NULL; \
		if (!p)                                                                    \
			return call;                                                       \
		r = vgpu_pool_book(&b, p, size, stream_used);                              \
		if (r != CUDA_SUCCESS)                                                     \
			return r;                                                          \
		do                                                                         \
			r = call;                                                          \
		while (vgpu_pool_again(&b, dptr, &r));                                     \
		return r;                                                                  \
	}

ALLOC_ASYNC(cuMemAllocAsync, (CUdeviceptr * dptr, size_t size, CUstream stream), false,
	    current_pool(stream), vgpu_real.cuMemAllocAsync(dptr, size, stream))
ALLOC_ASYNC(cuMemAllocAsync_ptsz, (CUdeviceptr * dptr, size_t size, CUstream stream), true,
	    current_pool(stream), vgpu_real.cuMemAllocAsync_ptsz(dptr, size, stream))
ALLOC_ASYNC(cuMemAllocFromPoolAsync,
	    (CUdeviceptr * dptr, size_t size, CUmemoryPool pool, CUstream stream), false,
	    named_pool(pool), vgpu_real.cuMemAllocFromPoolAsync(dptr, size, pool, stream))
ALLOC_ASYNC(cuMemAllocFromPoolAsync_ptsz,
	    (CUdeviceptr * dptr, size_t size, CUmemoryPool pool, CUstream stream), true,
	    named_pool(pool), vgpu_real.cuMemAllocFromPoolAsync_ptsz(dptr, size, pool, stream))

#define FREE_ASYNC(name, per_thread)                             \
	CUresult name(CUdeviceptr dptr, CUstream stream)         \
	{                                                        \
		CUstream used = vgpu_stream(stream, per_thread); \
		struct vgpu_item *list = NULL, item;             \
		bool pool;                                       \
		CUresult r;                                      \
                                                                 \
		VGPU_NEED_CUDA(name);                            \
		if (!vgpu_state.grant)                           \
			return vgpu_real.name(dptr, stream);     \
		pool = vgpu_pool_freeing(dptr, &item);           \
		if (!pool)                                       \
			list = vgpu_linear_freeing(dptr);        \
		r = vgpu_real.name(dptr, stream);                \
		if (pool)                                        \
			vgpu_pool_freed(&item, used, r);         \
		else                                             \
			vgpu_linear_freed(list, used, r);        \
		return r;                                        \
	}
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)
