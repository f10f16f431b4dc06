// SPDX-License-Identifier: Apache-2.0
/* vmm.c - virtual memory management: memory without an address, and addresses
 * without memory. Memory goes when its handle is released and nothing maps it. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>

struct vmm_handle *vmm_of(CUmemGenericAllocationHandle h)
{
	struct vmm_handle *v = (struct vmm_handle *)(uintptr_t)h;

	return v && v->magic == MAGIC_VMM ? v : NULL;
}

/* Memory of a device, or of a NUMA node of the host. */
enum { OF_DEVICE = 1, OF_NUMA_NODE = 3 };

static bool prop_ok(const CUmemAllocationProp *p)
{
	if (!p || p->type != 1)
		return false;
	return p->location.type == OF_NUMA_NODE ||
	       (p->location.type == OF_DEVICE && drv_device_ok(p->location.id));
}

void vmm_drop_if_unused(struct vmm_handle *v)
{
	if (v->refs || v->maps)
		return;
	if (v->export)
		export_drop(v);
	else if (!v->host)
		mem_uncharge(v->card, v->size);
	v->magic = 0;
	free(v);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	bool host = prop && prop->location.type == OF_NUMA_NODE;
	struct vmm_handle *v;
	CUdevice dev;
	CUresult rc;

	ENTER(NEED_INIT);
	if (!handle || flags || !prop_ok(prop) || !size || size % DRV_PAGE)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (drv.proc < 0) /* the process holds memory only once it has a context */
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	v = calloc(1, sizeof(*v));
	if (!v)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	dev = host ? 0 : prop->location.id;
	rc = host ? CUDA_SUCCESS : mem_charge(drv.card[dev], size);
	if (rc) {
		free(v);
		return drv_leave(rc);
	}
	*v = (struct vmm_handle){.magic = MAGIC_VMM,
				 .card = drv.card[dev],
				 .size = size,
				 .refs = 1,
				 .host = host,
				 .types = prop->requestedHandleTypes,
				 .device = prop->location.id};
	*handle = (uintptr_t)v;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct vmm_handle *v;

	ENTER(NEED_INIT);
	v = vmm_of(handle);
	if (!v || !v->refs)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	v->refs--;
	vmm_drop_if_unused(v);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr,
			     unsigned long long flags)
{
	struct block b = {.size = size, .kind = BLOCK_RESERVED};

	(void)addr; /* a wish, which the driver may ignore */
	ENTER(NEED_INIT);
	if (!ptr || !size || size % DRV_PAGE || flags || (align & (align - 1)))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	b.va = va_take(size, align > DRV_PAGE ? align : DRV_PAGE);
	if (!b.va || !block_add(&b))
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*ptr = b.va;
	return drv_leave(CUDA_SUCCESS);
}

/* The reservation that starts at or before va, past any mapping that starts there too. */
static struct block *reservation_of(CUdeviceptr va, size_t size)
{
	struct block *b;

	for (size_t i = 0; (b = block_at(i)) != NULL && b->va <= va; i++)
		if (b->kind == BLOCK_RESERVED && va + size <= b->va + b->size)
			return b;
	return NULL;
}

static bool overlaps_mapping(CUdeviceptr va, size_t size)
{
	struct block *b;

	for (size_t i = 0; (b = block_at(i)) != NULL && b->va < va + size; i++)
		if (b->kind == BLOCK_MAPPED && b->va + b->size > va)
			return true;
	return false;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	struct block *b;

	ENTER(NEED_INIT);
	b = reservation_of(ptr, size);
	if (!b || b->va != ptr || b->size != size || overlaps_mapping(ptr, size))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	va_give(ptr, size);
	block_remove(b);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct vmm_handle *v;
	struct block b = {.va = ptr, .size = size, .kind = BLOCK_MAPPED};

	ENTER(NEED_INIT);
	v = vmm_of(handle);
	if (!v || flags || !size || ptr % DRV_PAGE || size % DRV_PAGE || offset + size > v->size ||
	    !reservation_of(ptr, size) || overlaps_mapping(ptr, size))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	b.card = v->card;
	b.handle = v;
	b.handle_offset = offset;
	b.ctx = drv_current();
	if (!block_add(&b))
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	v->maps++;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	bool any = false;
	struct block *b;
	size_t i = 0;

	ENTER(NEED_INIT);
	while ((b = block_at(i)) != NULL && b->va < ptr + size) {
		struct vmm_handle *v = b->handle;

		if (b->kind != BLOCK_MAPPED || b->va < ptr || b->va + b->size > ptr + size) {
			i++;
			continue;
		}
		block_remove(b);
		v->maps--;
		vmm_drop_if_unused(v);
		any = true;
	}
	return drv_leave(any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t n)
{
	ENTER(NEED_INIT);
	if (!desc || !n || !overlaps_mapping(ptr, size))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       int option)
{
	(void)option; /* minimum and recommended are the same */
	ENTER(NEED_INIT);
	if (!granularity || !prop_ok(prop))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*granularity = DRV_PAGE;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct block *b;

	ENTER(NEED_INIT);
	b = block_find((uintptr_t)addr);
	if (!handle || !b || b->kind != BLOCK_MAPPED)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	b->handle->refs++;
	*handle = (uintptr_t)b->handle;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	struct vmm_handle *v;

	ENTER(NEED_INIT);
	v = vmm_of(handle);
	if (!prop || !v)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*prop = (CUmemAllocationProp){.type = 1,
				      .requestedHandleTypes = v->types,
				      .location = {v->host ? OF_NUMA_NODE : OF_DEVICE, v->device}};
	return drv_leave(CUDA_SUCCESS);
}
