/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.c - memory by descriptors of any API. If this process has exported the memory, also by CUDA,
 * an import is one more reference to its charge. Memory of other processes is left to the comparison.
 */
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "linear.h"
#include "release.h"
#include "shared.h"

static struct vgpu_table externals = VGPU_TABLE_INIT; /* import -> a reference */

static struct vgpu_kept *kept_of(const struct vgpu_item *item)
{
	return (struct vgpu_kept *)(uintptr_t)item->other;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	struct vgpu_kept *own = NULL;
	CUresult r;

	VGPU_NEED_CUDA(cuImportExternalMemory);
	/* Before the driver: it can close the descriptor. */
	if (vgpu_state.grant && desc && desc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		own = vgpu_shared_import(desc->handle.fd);
	r = vgpu_real.cuImportExternalMemory(memory, desc);
	if (r == CUDA_SUCCESS && own) {
		struct vgpu_item item = {.key = (uintptr_t)*memory, .other = (uintptr_t)own};

		vgpu_table_put(&externals, &item);
	} else if (own) {
		vgpu_shared_unimport(own);
	}
	return r;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory memory,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct vgpu_item item;
	CUresult r;

	VGPU_NEED_CUDA(cuExternalMemoryGetMappedBuffer);
	r = vgpu_real.cuExternalMemoryGetMappedBuffer(ptr, memory, desc);
	if (r == CUDA_SUCCESS && vgpu_state.grant &&
	    vgpu_table_get(&externals, (uintptr_t)memory, &item)) {
		vgpu_shared_import_again(kept_of(&item));
		vgpu_linear_own(*ptr, kept_of(&item));
	}
	return r;
}

/* The array keeps the memory, too. It is not followed, so this reference stays. */
CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
					const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc)
{
	struct vgpu_item item;
	CUresult r;

	VGPU_NEED_CUDA(cuExternalMemoryGetMappedMipmappedArray);
	r = vgpu_real.cuExternalMemoryGetMappedMipmappedArray(array, memory, desc);
	if (r == CUDA_SUCCESS && vgpu_state.grant &&
	    vgpu_table_get(&externals, (uintptr_t)memory, &item))
		vgpu_shared_import_again(kept_of(&item));
	return r;
}

static void gone(const struct vgpu_item *item)
{
	vgpu_shared_unimport(kept_of(item));
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	VGPU_NEED_CUDA(cuDestroyExternalMemory);
	return VGPU_FREE(&externals, memory, vgpu_real.cuDestroyExternalMemory(memory), gone);
}
