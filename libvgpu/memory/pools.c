/* SPDX-License-Identifier: Apache-2.0 */
/* pools.c - pools, as the program makes, finds, trims and destroys them. */
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "async.h"
#include "pool.h"

/* A pool belongs to the card that it names, whatever context is current; one in host memory
 * to none. Any page of a managed one may come to the card. */
static int card_of(const CUmemLocation *location, int type)
{
	int card;

	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return vgpu_card_of_device(location->id);
	if (type != CU_MEM_ALLOCATION_TYPE_MANAGED || !vgpu_state.ncards)
		return -1;
	card = vgpu_card_current();
	return card < 0 ? 0 : card;
}

/* False: what cannot be charged is not given. */
static bool pool_is(CUmemoryPool pool, const CUmemLocation *location, int type, bool created)
{
	int card = vgpu_state.grant ? card_of(location, type) : -1;
	struct pool *p = vgpu_pool_of(pool, card);

	if (p && type == CU_MEM_ALLOCATION_TYPE_MANAGED)
		p->managed = true;
	if (p && created)
		p->created = true;
	return card < 0 || p;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolCreate);
	if (props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    vgpu_not_granted(props->location.id))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	r = vgpu_real.cuMemPoolCreate(pool, props);
	if (r != CUDA_SUCCESS || !props || pool_is(*pool, &props->location, props->allocType, true))
		return r;
	if (vgpu_real.cuMemPoolDestroy)
		vgpu_real.cuMemPoolDestroy(*pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define GET_POOL(name)                                                                         \
	CUresult name(CUmemoryPool *pool, CUmemLocation *location, int type)                   \
	{                                                                                      \
		CUresult r;                                                                    \
                                                                                               \
		VGPU_NEED_CUDA(name);                                                          \
		r = vgpu_real.name(pool, location, type);                                      \
		return r == CUDA_SUCCESS && location && !pool_is(*pool, location, type, false) \
			       ? CUDA_ERROR_OUT_OF_MEMORY                                      \
			       : r;                                                            \
	}
GET_POOL(cuMemGetDefaultMemPool)
GET_POOL(cuMemGetMemPool)

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	struct pool *p;
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolTrimTo);
	r = vgpu_real.cuMemPoolTrimTo(pool, keep_bytes);
	p = r == CUDA_SUCCESS && vgpu_state.grant ? vgpu_pool_of(pool, -1) : NULL;
	if (p)
		vgpu_pool_settle(p);
	return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct vgpu_item *imported;
	struct pool *p;
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolDestroy);
	if (!vgpu_state.grant)
		return vgpu_real.cuMemPoolDestroy(pool);
	/* Exported memory that is freed has left the pool, and has a charge of its own. */
	p = vgpu_capturing() ? NULL : vgpu_pool_of(pool, -1);
	if (p)
		vgpu_pool_settle(p);
	imported = vgpu_imported_pool_goes(pool);
	pthread_mutex_lock(&vgpu_pools_lock);
	p = vgpu_pool_goes(pool);
	r = vgpu_real.cuMemPoolDestroy(pool);
	vgpu_pool_gone(p, pool, r);
	vgpu_imported_pool_gone(imported, r);
	vgpu_pools_forget_current(); /* the device's own pool is current again */
	return r;
}
