/* SPDX-License-Identifier: Apache-2.0 */
/* exports.h - imported pools, which are destroyed as others are. */
#ifndef VGPU_MEMORY_EXPORTS_H
#define VGPU_MEMORY_EXPORTS_H

#include "../base/table.h"
#include "../driver/cuda_abi.h"

/* Before and after the driver's call. */
struct vgpu_item *vgpu_imported_pool_goes(CUmemoryPool pool);
void vgpu_imported_pool_gone(struct vgpu_item *list, CUresult r);

#endif
