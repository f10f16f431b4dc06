/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - virtual memory management. The card gives memory at
 * cuMemCreate and takes it back when the last handle is released and the last
 * mapping is gone, so handles and mappings are counted as references.
 */
#include "../base/table.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "linear.h"
#include "pool.h"
#include "shared.h"
#include "take.h"

static struct vgpu_table handles = VGPU_TABLE_INIT;  /* handle -> size, references */
static struct vgpu_table mappings = VGPU_TABLE_INIT; /* address -> size, handle */

static void unref(uint64_t handle)
{
	struct vgpu_item item;

	if (vgpu_table_ref(&handles, handle, -1, &item) && item.refs == 0)
		vgpu_shared_release(handle, item.card, item.size);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	int card = -1;
	CUresult r;

	VGPU_NEED_CUDA(cuMemCreate);
	/* The location decides, not the current context: there may be none. */
	if (prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    vgpu_not_granted(prop->location.id))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (handle && prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		card = vgpu_card_of_device(prop->location.id);
	if (card < 0)
		return vgpu_real.cuMemCreate(handle, size, prop, flags);
	if (vgpu_mem_take(card, size))
		return vgpu_oom(card, size);
	r = vgpu_real.cuMemCreate(handle, size, prop, flags);
	if (r == CUDA_SUCCESS) {
		struct vgpu_item item = {.key = *handle, .size = size, .card = card, .refs = 1};

		vgpu_table_put(&handles, &item);
	}
	return vgpu_mem_done(card, size, r);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemRelease);
	vgpu_mem_begin();
	r = vgpu_real.cuMemRelease(handle);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		unref(handle);
	vgpu_mem_end();
	return r;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct vgpu_item item;
	CUresult r;

	VGPU_NEED_CUDA(cuMemMap);
	r = vgpu_real.cuMemMap(ptr, size, offset, handle, flags);
	/* Imported handles are not in the table: the exporter pays. */
	if (r == CUDA_SUCCESS && vgpu_state.grant && vgpu_table_ref(&handles, handle, 1, &item)) {
		struct vgpu_item map = {.key = ptr, .size = size, .other = handle};

		if (!vgpu_table_put(&mappings, &map))
			unref(handle);
	}
	return r;
}

/* So many handles are collected at a time. */
#define UNMAPPED 64
struct unmapped {
	CUdeviceptr begin, end;
	unsigned n;
	uint64_t handle[UNMAPPED];
};

static bool collect(const struct vgpu_item *map, uint64_t to)
{
	struct unmapped *u = (struct unmapped *)(uintptr_t)to;

	if (map->key < u->begin || map->key >= u->end || u->n == UNMAPPED)
		return false;
	u->handle[u->n++] = map->other;
	return true;
}

/* One call may cover several mappings, and others between them that are not ours. */
static void unmapped(CUdeviceptr ptr, size_t size)
{
	struct unmapped u = {.begin = ptr, .end = ptr + size};
	struct vgpu_item map;

	/* Most calls are for one, or for neighbours. */
	while (u.begin < u.end && vgpu_table_take(&mappings, u.begin, &map)) {
		unref(map.other);
		u.begin += map.size;
	}
	for (bool more = u.begin < u.end; more; more = u.n == UNMAPPED) {
		u.n = 0;
		vgpu_table_sweep(&mappings, (uintptr_t)&u, collect);
		for (unsigned i = 0; i < u.n; i++)
			unref(u.handle[i]);
	}
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemUnmap);
	vgpu_mem_begin();
	r = vgpu_real.cuMemUnmap(ptr, size);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		unmapped(ptr, size);
	vgpu_mem_end();
	return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct vgpu_item item;
	CUresult r;

	VGPU_NEED_CUDA(cuMemRetainAllocationHandle);
	r = vgpu_real.cuMemRetainAllocationHandle(handle, addr);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&handles, *handle, 1, &item);
	return r;
}

/* Whatever memory has the addresses. */
CUresult cuMemGetHandleForAddressRange(void *to, CUdeviceptr ptr, size_t size, int type,
				       unsigned long long flags)
{
	struct vgpu_range range = {.begin = ptr, .end = ptr + size};
	CUresult r;

	VGPU_NEED_CUDA(cuMemGetHandleForAddressRange);
	r = vgpu_real.cuMemGetHandleForAddressRange(to, ptr, size, type, flags);
	if (r == CUDA_SUCCESS && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && vgpu_state.grant) {
		range.fd = *(int *)to;
		vgpu_shared_closed(range.fd);
		vgpu_linear_exported(&range);
		vgpu_pools_exported(&range);
		range.mapped = true;
		vgpu_table_sweep(&mappings, (uintptr_t)&range, vgpu_shared_range);
	}
	return r;
}
