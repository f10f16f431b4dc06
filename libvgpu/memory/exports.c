/* SPDX-License-Identifier: Apache-2.0 */
/* exports.c - memory that is exported to other processes, and imported. */
#include <unistd.h>

#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "exports.h"
#include "linear.h"
#include "release.h"
#include "shared.h"
#include "vmm.h"

/* An export that cannot be noted is not given: after its release, its memory would count for no
 * process. */
static CUresult noted(bool ok, int fd)
{
	if (ok)
		return CUDA_SUCCESS;
	close(fd);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemExportToShareableHandle(void *to, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemExportToShareableHandle);
	r = vgpu_real.cuMemExportToShareableHandle(to, handle, type, flags);
	if (r != CUDA_SUCCESS || !vgpu_state.grant)
		return r;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		return vgpu_vmm_exported_data(handle, to) ? r : CUDA_ERROR_OUT_OF_MEMORY;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return r;
	vgpu_shared_reused(*(int *)to);
	return noted(vgpu_vmm_exported(handle, *(int *)to), *(int *)to);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, int type)
{
	struct vgpu_kept *own = NULL;
	CUresult r;

	VGPU_NEED_CUDA(cuMemImportFromShareableHandle);
	/* Before the driver: another thread may release the allocation. */
	if (vgpu_state.grant && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		own = vgpu_shared_import((int)(intptr_t)from);
	else if (vgpu_state.grant && type == CU_MEM_HANDLE_TYPE_FABRIC && from)
		own = vgpu_shared_import_data(from);
	r = vgpu_real.cuMemImportFromShareableHandle(handle, from, type);
	if (r == CUDA_SUCCESS && vgpu_state.grant)
		vgpu_vmm_imported(*handle, own);
	else if (own)
		vgpu_shared_unimport(own);
	return r;
}

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
	CUresult r;

	VGPU_NEED_CUDA(cuMemGetHandleForAddressRange);
	r = vgpu_real.cuMemGetHandleForAddressRange(to, ptr, size, type, flags);
	if (r != CUDA_SUCCESS || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !vgpu_state.grant)
		return r;
	range.fd = *(int *)to;
	vgpu_shared_reused(range.fd);
	note_range(&range);
	return noted(!range.failed, range.fd);
}

CUresult cuMemPoolExportToShareableHandle(void *to, CUmemoryPool pool, int type,
					  unsigned long long flags)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolExportToShareableHandle);
	r = vgpu_real.cuMemPoolExportToShareableHandle(to, pool, type, flags);
	if (r != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !vgpu_state.grant)
		return r;
	vgpu_shared_reused(*(int *)to);
	return noted(vgpu_shared_note((uintptr_t)pool, *(int *)to), *(int *)to);
}

/* An imported pool keeps the memory of the pool. It also keeps the memory of each pointer that was
 * imported from it, after that pointer is freed (measured: 580, H100). */
static struct vgpu_table imported_pools = VGPU_TABLE_INIT; /* pool -> a reference */

static void keeps(CUmemoryPool pool, struct vgpu_kept *own)
{
	struct vgpu_item item = {.key = (uintptr_t)pool, .other = (uintptr_t)own};

	vgpu_table_put(&imported_pools, &item);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *from, int type,
					    unsigned long long flags)
{
	struct vgpu_kept *own = NULL;
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolImportFromShareableHandle);
	if (vgpu_state.grant && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		own = vgpu_shared_import((int)(intptr_t)from);
	r = vgpu_real.cuMemPoolImportFromShareableHandle(pool, from, type, flags);
	if (r == CUDA_SUCCESS && own)
		keeps(*pool, own);
	else if (own)
		vgpu_shared_unimport(own);
	return r;
}

static void pool_gone(const struct vgpu_item *item)
{
	vgpu_shared_unimport((struct vgpu_kept *)(uintptr_t)item->other);
}

struct vgpu_item *vgpu_imported_pool_goes(CUmemoryPool pool)
{
	return vgpu_freeing(&imported_pools, (uintptr_t)pool);
}

void vgpu_imported_pool_gone(struct vgpu_item *list, CUresult r)
{
	vgpu_freed(&imported_pools, list, r, pool_gone);
}

CUresult cuMemPoolExportPointer(void *data, CUdeviceptr ptr)
{
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolExportPointer);
	r = vgpu_real.cuMemPoolExportPointer(data, ptr);
	if (r == CUDA_SUCCESS && vgpu_state.grant && !vgpu_shared_note_data(ptr, data))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return r;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, void *data)
{
	struct vgpu_kept *own = NULL;
	CUresult r;

	VGPU_NEED_CUDA(cuMemPoolImportPointer);
	if (vgpu_state.grant && data)
		own = vgpu_shared_import_data(data);
	r = vgpu_real.cuMemPoolImportPointer(ptr, pool, data);
	if (r == CUDA_SUCCESS && own)
		keeps(pool, own);
	else if (own)
		vgpu_shared_unimport(own);
	if (r != CUDA_SUCCESS || own || !vgpu_state.grant || vgpu_linear_imported(*ptr, false) == 0)
		return r;
	vgpu_real.cuMemFree_v2(*ptr);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define IPC_OPEN(name)                                                         \
	CUresult name(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned flags) \
	{                                                                      \
		CUresult r;                                                    \
                                                                               \
		VGPU_NEED_CUDA(name);                                          \
		r = vgpu_real.name(ptr, handle, flags);                        \
		if (r != CUDA_SUCCESS || !vgpu_state.grant ||                  \
		    vgpu_linear_imported(*ptr, true) == 0)                     \
			return r;                                              \
		vgpu_real.cuIpcCloseMemHandle(*ptr);                           \
		return CUDA_ERROR_OUT_OF_MEMORY;                               \
	}
IPC_OPEN(cuIpcOpenMemHandle)
IPC_OPEN(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
	VGPU_NEED_CUDA(cuIpcCloseMemHandle);
	return vgpu_linear_closed(ptr, vgpu_real.cuIpcCloseMemHandle);
}
