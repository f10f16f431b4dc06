/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exports.c - memory that is exported to other processes and APIs, and imported. An import of memory
 * that this process has exported is one more reference to its charge. imports.c decides who pays for
 * memory of other processes. External memory of other processes is left to the comparison.
 */
#include <unistd.h>

#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"

/* ------------------------------------------------------------------------------ exports */
/* An export that cannot be noted is not given: after its release, its memory would count for no
 * process. */
static CUresult noted(bool ok, int fd)
{
	if (ok)
		return CUDA_SUCCESS;
	close(fd);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* No pool has the handle of an allocation. */
static CUresult exported(CUresult r, int type, void *to, uint64_t handle)
{
	if (r != CUDA_SUCCESS || !vgpu_state.grant)
		return r;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return vgpu_vmm_exported_data(handle, to) ? r : CUDA_ERROR_OUT_OF_MEMORY;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return r;
	return noted(vgpu_vmm_exported(handle, *(int *)to), *(int *)to);
}

#define EXPORT(name, kind)                                                         \
	CUresult name(void *to, kind handle, int type, unsigned long long flags)   \
	{                                                                          \
		VGPU_NEED_CUDA(name);                                              \
		return exported(vgpu_real.name(to, handle, type, flags), type, to, \
				(uint64_t)handle);                                 \
	}
EXPORT(cuMemExportToShareableHandle, CUmemGenericAllocationHandle)
EXPORT(cuMemPoolExportToShareableHandle, CUmemoryPool)

/* Memory of any kind can have the addresses. Most calls are for a part of one allocation. */
static void note_range(struct vgpu_range *range)
{
	CUdeviceptr base = 0;
	size_t size = 0;

	if (vgpu_real.cuMemGetAddressRange_v2 &&
	    vgpu_real.cuMemGetAddressRange_v2(&base, &size, range->begin) == CUDA_SUCCESS)
		range->base = base;
	if (vgpu_shared_one(&vgpu_addresses, range) || vgpu_vmm_range_one(range))
		return;
	vgpu_table_sweep(&vgpu_addresses, (uintptr_t)range, vgpu_shared_range);
	vgpu_vmm_range(range);
}

CUresult cuMemGetHandleForAddressRange(void *to, CUdeviceptr ptr, size_t size, int type,
				       unsigned long long flags)
{
	struct vgpu_range range = {.begin = ptr, .end = ptr + size};

	VGPU_NEED_CUDA(cuMemGetHandleForAddressRange);
	CUresult r = vgpu_real.cuMemGetHandleForAddressRange(to, ptr, size, type, flags);
	if (r != CUDA_SUCCESS || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !vgpu_state.grant)
		return r;
	range.fd = *(int *)to;
	note_range(&range);
	return noted(!range.failed, range.fd);
}

CUresult cuMemPoolExportPointer(void *data, CUdeviceptr ptr)
{
	VGPU_NEED_CUDA(cuMemPoolExportPointer);
	CUresult r = vgpu_real.cuMemPoolExportPointer(data, ptr);
	return r == CUDA_SUCCESS && vgpu_state.grant && !vgpu_shared_note_data(ptr, data)
		       ? CUDA_ERROR_OUT_OF_MEMORY
		       : r;
}

/* ------------------------------------------------------------------------------ imports */
/* Imported pools and external memory -> a reference. An imported pool also keeps the memory of each
 * pointer that was imported from it, after that pointer is freed (measured: 580, H100). */
VGPU_TABLE(vgpu_holders);

static struct vgpu_kept *kept_of(const struct vgpu_item *item)
{
	return (struct vgpu_kept *)(uintptr_t)item->other;
}

/* Before the driver's call: it can close the descriptor, and another thread can release the
 * allocation. NULL: the memory is not known as this process's own. */
static struct vgpu_kept *own(int type, const void *from)
{
	if (vgpu_state.grant && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return vgpu_shared_import((int)(intptr_t)from);
	if (vgpu_state.grant && type == CU_MEM_HANDLE_TYPE_FABRIC && from)
		return vgpu_shared_import_data(from);
	return NULL;
}

/* After the driver's call: the holder gets the reference. If the driver fails, the reference ends. */
static CUresult held(CUresult r, const void *holder, struct vgpu_kept *k)
{
	struct vgpu_item item = {.key = (uintptr_t)holder, .other = (uintptr_t)k};

	if (k && r == CUDA_SUCCESS)
		vgpu_table_put(&vgpu_holders, &item);
	else if (k)
		vgpu_shared_unimport(k);
	return r;
}

void vgpu_holder_gone(const struct vgpu_item *item)
{
	vgpu_shared_unimport(kept_of(item));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, int type)
{
	VGPU_NEED_CUDA(cuMemImportFromShareableHandle);
	struct vgpu_kept *k = own(type, from);
	CUresult r = vgpu_real.cuMemImportFromShareableHandle(handle, from, type);
	if (r != CUDA_SUCCESS)
		return held(r, NULL, k);
	if (vgpu_state.grant)
		vgpu_vmm_imported(*handle, k);
	return r;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *from, int type,
					    unsigned long long flags)
{
	VGPU_NEED_CUDA(cuMemPoolImportFromShareableHandle);
	struct vgpu_kept *k = own(type, from);
	CUresult r = vgpu_real.cuMemPoolImportFromShareableHandle(pool, from, type, flags);
	return held(r, r == CUDA_SUCCESS ? *pool : NULL, k);
}

/* Memory of another process that is not paid for is closed again. */
static CUresult opened(CUresult r, CUdeviceptr *ptr, bool of_context, CUresult (*undo)(CUdeviceptr))
{
	if (r != CUDA_SUCCESS || !vgpu_state.grant || vgpu_linear_imported(*ptr, of_context) == 0)
		return r;
	undo(*ptr);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, void *data)
{
	VGPU_NEED_CUDA(cuMemPoolImportPointer);
	struct vgpu_kept *k = own(CU_MEM_HANDLE_TYPE_FABRIC, data);
	CUresult r = held(vgpu_real.cuMemPoolImportPointer(ptr, pool, data), pool, k);
	return k ? r : opened(r, ptr, false, vgpu_real.cuMemFree_v2);
}

#define IPC_OPEN(name)                                                         \
	CUresult name(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags) \
	{                                                                      \
		VGPU_NEED_CUDA(name);                                          \
		return opened(vgpu_real.name(ptr, handle, flags), ptr, true,   \
			      vgpu_real.cuIpcCloseMemHandle);                  \
	}
IPC_OPEN(cuIpcOpenMemHandle)
IPC_OPEN(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	VGPU_NEED_CUDA(cuIpcCloseMemHandle);
	return vgpu_unref(&vgpu_addresses, ptr, vgpu_real.cuIpcCloseMemHandle, vgpu_linear_freed);
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct vgpu_kept *k = NULL;

	VGPU_NEED_CUDA(cuImportExternalMemory);
	if (desc && desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		k = own(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			(void *)(intptr_t)desc->handle.fd);
	CUresult r = vgpu_real.cuImportExternalMemory(memory, desc);
	return held(r, r == CUDA_SUCCESS ? *memory : NULL, k);
}

/* A mapping of external memory is one more reference. */
static struct vgpu_kept *mapped(CUresult r, CUexternalMemory memory)
{
	struct vgpu_item item = {.other = 0};

	if (r == CUDA_SUCCESS && vgpu_state.grant &&
	    vgpu_table_get(&vgpu_holders, (uintptr_t)memory, &item))
		vgpu_shared_import_again(kept_of(&item));
	return kept_of(&item);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory memory,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	VGPU_NEED_CUDA(cuExternalMemoryGetMappedBuffer);
	CUresult r = vgpu_real.cuExternalMemoryGetMappedBuffer(ptr, memory, desc);
	struct vgpu_kept *k = mapped(r, memory);
	if (k)
		vgpu_table_put(&vgpu_addresses, &(struct vgpu_item){.key = *ptr,
								    .kind = VGPU_OWN,
								    .other = (uintptr_t)k});
	return r;
}

/* The array is not followed, so its reference stays. */
CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
					const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	VGPU_NEED_CUDA(cuExternalMemoryGetMappedMipmappedArray);
	CUresult r = vgpu_real.cuExternalMemoryGetMappedMipmappedArray(array, memory, desc);
	mapped(r, memory);
	return r;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	VGPU_NEED_CUDA(cuDestroyExternalMemory);
	return VGPU_FREE(&vgpu_holders, memory, vgpu_real.cuDestroyExternalMemory(memory),
			 vgpu_holder_gone);
}
