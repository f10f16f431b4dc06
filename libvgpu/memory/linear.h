/* SPDX-License-Identifier: Apache-2.0 */
/* linear.h - linear and pitched memory. */
#ifndef VGPU_MEMORY_LINEAR_H
#define VGPU_MEMORY_LINEAR_H

#include "../driver/cuda_abi.h"
#include "shared.h"

/* The driver has freed an entry by address, or ended a handle of vmm.c: its charge goes. */
void vgpu_linear_freed(const struct vgpu_item *item);
/* An address is an import of this process's own memory: a reference, until it is freed. */
void vgpu_linear_own(CUdeviceptr dptr, struct vgpu_kept *own);
/* An address is an import of another process's memory, which may end with its context: 0, or -ENOMEM
 * as vgpu_imports_more. */
int vgpu_linear_imported(CUdeviceptr dptr, bool of_context);
/* One is closed, by the driver's call. */
CUresult vgpu_linear_closed(CUdeviceptr dptr, CUresult (*real)(CUdeviceptr));
/* What ended with a context. */
void vgpu_linear_ended(uint64_t owner);

#endif
