/* SPDX-License-Identifier: Apache-2.0 */
/* async.c - stream-ordered allocation: which pool a call takes from, and whether it
 * takes at all. */
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
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
	*dev = 0;
	return LOAD(&vgpu_only_card) >= 0 ||
	       (vgpu_real.cuStreamGetDevice &&
		vgpu_real.cuStreamGetDevice(stream, dev) == CUDA_SUCCESS) ||
	       vgpu_real.cuCtxGetDevice(dev) == CUDA_SUCCESS;
}

/* The current pool of each device, or NULL: to be asked for, which costs as much as
 * the rest of an allocation. Forgotten whenever it may have changed. */
#define MAX_CURRENT 64
static VGPU_PRIVATE struct pool *current[MAX_CURRENT];
static uint32_t changes; /* of it; under vgpu_pools_lock */

void vgpu_pools_forget_current(void)
{
	VGPU_LOCK(&vgpu_pools_lock);

	ADD(&changes, 1);
	for (int i = 0; i < MAX_CURRENT; i++)
		STORE(&current[i], NULL);
}

static struct pool *ask_current(CUdevice dev)
{
	uint32_t before = LOAD(&changes);
	CUmemoryPool handle = NULL;
	int card = vgpu_card_of_device(dev);

	if (card < 0 || !vgpu_real.cuDeviceGetMemPool ||
	    vgpu_real.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS || !handle)
		return NULL;
	struct pool *p = vgpu_pool_of(handle, card);
	VGPU_LOCK(&vgpu_pools_lock);
	/* Else the answer may be older than the change. */
	if (before == changes)
		STORE(&current[dev], p);
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
		p = LOAD(&current[dev]);
	return likely(p != NULL) ? p : ask_current(dev);
}

#define SET_POOL(name, params, args)              \
	CUresult name params                      \
	{                                         \
		VGPU_NEED_CUDA(name);             \
		CUresult r = vgpu_real.name args; \
		vgpu_pools_forget_current();      \
		return r;                         \
	}
SET_POOL(cuDeviceSetMemPool, (CUdevice dev, CUmemoryPool pool), (dev, pool))
SET_POOL(cuMemSetMemPool, (const CUmemLocation *location, int type, CUmemoryPool pool),
	 (location, type, pool))

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

#define ALLOC_ASYNC(name, params, args, per_thread, pool_of_call)                                 \
	CUresult name params                                                                      \
	{                                                                                         \
		struct vgpu_booking b;                                                            \
                                                                                                  \
		VGPU_NEED_CUDA(name);                                                             \
		CUstream stream_used = vgpu_stream(stream, per_thread);                           \
		struct pool *p =                                                                  \
			vgpu_state.grant && dptr && !captured(stream_used) ? pool_of_call : NULL; \
		if (!p)                                                                           \
			return vgpu_real.name args;                                               \
		CUresult r = vgpu_pool_book(&b, p, size, stream_used);                            \
		if (r != CUDA_SUCCESS)                                                            \
			return r;                                                                 \
		do                                                                                \
			r = vgpu_real.name args;                                                  \
		while (vgpu_pool_again(&b, dptr, &r));                                            \
		return r;                                                                         \
	}

#define CURRENT(name, per_thread)                                             \
	ALLOC_ASYNC(name, (CUdeviceptr * dptr, size_t size, CUstream stream), \
		    (dptr, size, stream), per_thread, current_pool(stream_used))
CURRENT(cuMemAllocAsync, false)
CURRENT(cuMemAllocAsync_ptsz, true)

#define NAMED(name, per_thread)                                                                  \
	ALLOC_ASYNC(name, (CUdeviceptr * dptr, size_t size, CUmemoryPool pool, CUstream stream), \
		    (dptr, size, pool, stream), per_thread, named_pool(pool))
NAMED(cuMemAllocFromPoolAsync, false)
NAMED(cuMemAllocFromPoolAsync_ptsz, true)
