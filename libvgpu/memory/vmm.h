/* SPDX-License-Identifier: Apache-2.0 */
/* vmm.h - exports and imports of cuMemCreate's memory. */
#ifndef VGPU_MEMORY_VMM_H
#define VGPU_MEMORY_VMM_H

#include "../driver/cuda_abi.h"
#include "shared.h"

/* A descriptor keeps the memory of a handle, or of all mappings in a range. False, or failed: this
 * process has no memory to note that. */
bool vgpu_vmm_exported(CUmemGenericAllocationHandle handle, int fd);
bool vgpu_vmm_exported_data(CUmemGenericAllocationHandle handle, const void *data);
bool vgpu_vmm_range_one(struct vgpu_range *range); /* as vgpu_shared_one */
void vgpu_vmm_range(struct vgpu_range *range);
/* A new handle is an import: of memory of this process, or of another's where own is NULL. */
void vgpu_vmm_imported(CUmemGenericAllocationHandle handle, struct vgpu_kept *own);

#endif
