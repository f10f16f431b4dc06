/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - virtual memory management. The card gives memory at
 * cuMemCreate and takes it back when the last handle is released and the last
 * mapping is gone, so handles and mappings are counted as references.
 *
 * An import has a handle of its own. If it is of an export of this process, it is a reference to that
 * memory's charge. Else the size is known only when it is mapped, and imports.c decides who pays.
 */
#include <errno.h>

#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"

/* handle -> size, references; of an import what keeps the memory */
static VGPU_TABLE(handles);
static VGPU_TABLE(mappings); /* address -> size, handle */

static struct vgpu_kept *kept_of(const struct vgpu_item *handle)
{
	return (struct vgpu_kept *)(uintptr_t)handle->other;
}

static void unref(uint64_t handle)
{
	struct vgpu_item item;

	if (vgpu_table_ref(&handles, handle, -1, &item) && item.refs == 0)
		vgpu_linear_freed(&item);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	/* The location decides, not the current context: there may be none. */
	bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

	VGPU_NEED_CUDA(cuMemCreate);
	if (device && vgpu_not_granted(prop->location.id))
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	VGPU_ALLOC(&handles, device && handle ? vgpu_card_of_device(prop->location.id) : -1, size,
		   vgpu_real.cuMemCreate(handle, size, prop, flags), .key = *handle, .size = size,
		   .refs = 1);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	VGPU_NEED_CUDA(cuMemRelease);
	return vgpu_unref(&handles, handle, vgpu_real.cuMemRelease, vgpu_linear_freed);
}

/* The first end bytes of a handle are mapped. If it is an import, they are charged: 0 or -ENOMEM. */
static int charge_import(const struct vgpu_item *handle, uint64_t end)
{
	uint64_t more = end > handle->size ? end - handle->size : 0;

	if (handle->kind != VGPU_IMPORT || more == 0 || vgpu_absurd(end))
		return 0;
	if (vgpu_imports_more(handle->card, more))
		return -ENOMEM;
	/* Another thread may have charged them meanwhile. */
	vgpu_imports_less(handle->card, more - vgpu_table_raise(&handles, handle->key, end));
	return 0;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	struct vgpu_item item;

	VGPU_NEED_CUDA(cuMemMap);
	if (vgpu_state.grant && vgpu_table_get(&handles, handle, &item) && !vgpu_absurd(offset) &&
	    charge_import(&item, offset + size))
		return vgpu_oom(item.card, size);
	CUresult r = vgpu_real.cuMemMap(ptr, size, offset, handle, flags);
	if (r == CUDA_SUCCESS && vgpu_state.grant && vgpu_table_ref(&handles, handle, 1, &item)) {
		struct vgpu_item map = {.key = ptr, .size = size, .other = handle};

		if (!vgpu_table_put(&mappings, &map))
			unref(handle);
	}
	return r;
}

static bool starts_in(const struct vgpu_item *map, uint64_t range)
{
	const struct vgpu_range *r = (const struct vgpu_range *)(uintptr_t)range;

	return map->key >= r->begin && map->key < r->end;
}

static void unmapped(const struct vgpu_item *map)
{
	unref(map->other);
}

static struct vgpu_item *joined(struct vgpu_item *list, struct vgpu_item *more)
{
	struct vgpu_item **end = &list;

	while (*end)
		end = &(*end)->next;
	*end = more;
	return list;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct vgpu_range range = {.begin = ptr, .end = ptr + size};
	struct vgpu_item *list = NULL, *more;

	VGPU_NEED_CUDA(cuMemUnmap);
	vgpu_mem_begin();
	/* One call may cover several mappings, and others between them that are not ours. Most calls are
	 * for one, or for neighbors. */
	while (range.begin < range.end &&
	       (more = vgpu_table_detach(&mappings, range.begin)) != NULL) {
		range.begin += more->size;
		list = joined(more, list);
	}
	if (range.begin < range.end)
		list = joined(vgpu_table_detach_if(&mappings, (uintptr_t)&range, starts_in), list);
	CUresult r = vgpu_real.cuMemUnmap(ptr, size);
	vgpu_freed(&mappings, list, r, unmapped);
	return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct vgpu_item item;

	VGPU_NEED_CUDA(cuMemRetainAllocationHandle);
	CUresult r = vgpu_real.cuMemRetainAllocationHandle(handle, addr);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_table_ref(&handles, *handle, 1, &item);
	return r;
}

bool vgpu_vmm_exported(CUmemGenericAllocationHandle handle, int fd)
{
	struct vgpu_item item;

	if (!vgpu_table_get(&handles, handle, &item) || item.kind == VGPU_LINEAR)
		return vgpu_shared_note(handle, fd);
	return item.kind == VGPU_IMPORT || vgpu_shared_note_kept(kept_of(&item), fd);
}

bool vgpu_vmm_exported_data(CUmemGenericAllocationHandle handle, const void *data)
{
	struct vgpu_item item;

	return !vgpu_table_get(&handles, handle, &item) || item.kind != VGPU_LINEAR ||
	       vgpu_shared_note_data(handle, data);
}

static bool export_mapping(const struct vgpu_item *map, uint64_t range)
{
	struct vgpu_range *r = (struct vgpu_range *)(uintptr_t)range;

	if (vgpu_in_range(map, r) && !vgpu_vmm_exported(map->other, r->fd))
		r->failed = true;
	return false;
}

bool vgpu_vmm_range_one(struct vgpu_range *range)
{
	struct vgpu_item map;

	if (!vgpu_table_get(&mappings, range->base, &map) || map.key > range->begin ||
	    map.key + map.size < range->end)
		return false;
	export_mapping(&map, (uintptr_t)range);
	return true;
}

void vgpu_vmm_range(struct vgpu_range *range)
{
	vgpu_table_sweep(&mappings, (uintptr_t)range, export_mapping);
}

/* The card of imported memory; -1: none, as of a multicast object. */
static int card_of(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop = {.type = 0};

	if (!vgpu_real.cuMemGetAllocationPropertiesFromHandle ||
	    vgpu_real.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS ||
	    prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return -1;
	return vgpu_card_of_device(prop.location.id);
}

void vgpu_vmm_imported(CUmemGenericAllocationHandle handle, struct vgpu_kept *own)
{
	struct vgpu_item item = {.key = handle,
				 .kind = own ? VGPU_OWN : VGPU_IMPORT,
				 .other = (uintptr_t)own,
				 .card = own ? 0 : card_of(handle),
				 .refs = 1};

	if (item.card >= 0)
		vgpu_table_put(&handles, &item);
}
