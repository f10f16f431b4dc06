// SPDX-License-Identifier: Apache-2.0
/* ctxopts.c - flags, limits and settings of the current context. */
#include "local.h"

CUresult cuCtxGetFlags(unsigned *flags)
{
	ENTER(NEED_CTX);
	if (!flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = drv_current()->flags;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned flags)
{
	ENTER(NEED_CTX);
	drv_current()->flags = flags;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
	ENTER(NEED_CTX);
	if (!value)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (limit < 0 || limit >= CU_LIMIT_COUNT)
		return drv_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	*value = drv_current()->limit[limit];
	return drv_leave(CUDA_SUCCESS);
}

/* Launches from the device that may wait, and a record for each that is more. */
#define PENDING 2048u
#define PENDING_BYTES 256u

/* A larger stack takes device memory at once, for every thread that the card
 * can hold; a larger heap only when a module that calls malloc is loaded. */
static uint64_t limits_cost(CUcontext c)
{
	uint64_t threads = (uint64_t)drv.st->card[c->card].conf.sms * 2048;
	uint64_t cost = 0;

	if (c->uses_heap && c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] > 8388608)
		cost += c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] - 8388608;
	if (c->limit[CU_LIMIT_STACK_SIZE] > 1024)
		cost += (c->limit[CU_LIMIT_STACK_SIZE] - 1024) * threads;
	if (c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] > PENDING)
		cost += (c->limit[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] - PENDING) *
			PENDING_BYTES;
	return (cost + DRV_PAGE - 1) / DRV_PAGE * DRV_PAGE;
}

CUresult limits_charge(CUcontext c)
{
	uint64_t want = limits_cost(c);
	CUresult rc = CUDA_SUCCESS;

	if (want > c->heap_bytes)
		rc = mem_charge(c->card, want - c->heap_bytes);
	else
		mem_uncharge(c->card, c->heap_bytes - want);
	if (!rc)
		c->heap_bytes = want;
	return rc;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext c;
	CUresult rc;
	size_t old;

	ENTER(NEED_CTX);
	c = drv_current();
	if (limit < 0 || limit >= CU_LIMIT_COUNT)
		return drv_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	old = c->limit[limit];
	c->limit[limit] = value;
	rc = limits_charge(c);
	if (rc)
		c->limit[limit] = old;
	return drv_leave(rc);
}

CUresult cuCtxGetCacheConfig(int *config)
{
	ENTER(NEED_CTX);
	if (!config)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*config = drv_current()->cache_config;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCacheConfig(int config)
{
	ENTER(NEED_CTX);
	drv_current()->cache_config = config;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetSharedMemConfig(int *config)
{
	ENTER(NEED_CTX);
	if (!config)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*config = drv_current()->shared_config;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetSharedMemConfig(int config)
{
	ENTER(NEED_CTX);
	drv_current()->shared_config = config;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(NEED_CTX);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	ENTER(NEED_CTX);
	return drv_leave(flags || !drv_ctx_valid(peer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	ENTER(NEED_CTX);
	return drv_leave(drv_ctx_valid(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
