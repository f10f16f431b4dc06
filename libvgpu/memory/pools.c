/* SPDX-License-Identifier: Apache-2.0 */
/* pools.c - pools, as the program makes, finds, trims and destroys them. */
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "account.h"
#include "pool.h"
#include "shared.h"

/* A pool belongs to the card that it names, whatever context is current; one in host memory
 * to none. Any page of a managed one may come to the card. */
static int card_of(const CUmemLocation *location, int type)
{
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return vgpu_card_of_device(location->id);
	if (type != CU_MEM_ALLOCATION_TYPE_MANAGED || !vgpu_state.ncards)
		return -1;
	int card = vgpu_card_current();
	return card < 0 ? 0 : card;
}

/* A pool that the driver has named; what cannot be charged is not given. */
static CUresult found(CUresult r, CUmemoryPool *pool, const CUmemLocation *location, int type)
{
	int card = r == CUDA_SUCCESS && location && vgpu_state.grant ? card_of(location, type) : -1;
	struct pool *p = card < 0 ? NULL : vgpu_pool_of(*pool, card);

	if (p && type == CU_MEM_ALLOCATION_TYPE_MANAGED)
		p->managed = true;
	return card < 0 || p ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	VGPU_NEED_CUDA(cuMemPoolCreate);
	if (props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    vgpu_not_granted(props->location.id))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	CUresult r = vgpu_real.cuMemPoolCreate(pool, props);
	CUresult given = props ? found(r, pool, &props->location, props->allocType) : r;
	if (given != r && vgpu_real.cuMemPoolDestroy)
		vgpu_real.cuMemPoolDestroy(*pool);
	return given;
}

#define GET_POOL(name)                                                                    \
	CUresult name(CUmemoryPool *pool, CUmemLocation *location, int type)              \
	{                                                                                 \
		VGPU_NEED_CUDA(name);                                                     \
		return found(vgpu_real.name(pool, location, type), pool, location, type); \
	}
GET_POOL(cuMemGetDefaultMemPool)
GET_POOL(cuMemGetMemPool)

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	VGPU_NEED_CUDA(cuMemPoolTrimTo);
	CUresult r = vgpu_real.cuMemPoolTrimTo(pool, keep_bytes);
	struct pool *p = r == CUDA_SUCCESS && vgpu_state.grant ? vgpu_pool_of(pool, -1) : NULL;
	if (p)
		vgpu_pool_settle(p);
	return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	VGPU_NEED_CUDA(cuMemPoolDestroy);
	if (!vgpu_state.grant)
		return vgpu_real.cuMemPoolDestroy(pool);
	/* Exported memory that is freed has left the pool, and has a charge of its own. */
	struct pool *p = vgpu_capturing() ? NULL : vgpu_pool_of(pool, -1);
	if (p)
		vgpu_pool_settle(p);
	CUresult r = VGPU_FREE(&vgpu_holders, pool, vgpu_pool_destroy(pool), vgpu_holder_gone);
	vgpu_pools_forget_current(); /* the device's own pool is current again */
	return r;
}
