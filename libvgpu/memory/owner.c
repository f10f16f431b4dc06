/* SPDX-License-Identifier: Apache-2.0 */
/* owner.c - see account.h. */
#include "account.h"

VGPU_TABLE(vgpu_contexts_made);

uint64_t vgpu_context_owner(int card)
{
	struct vgpu_item item;
	CUcontext ctx = NULL;

	if (LOAD(&vgpu_contexts_made.count) && vgpu_real.cuCtxGetCurrent &&
	    vgpu_real.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS &&
	    vgpu_table_get(&vgpu_contexts_made, (uint64_t)(uintptr_t)ctx, &item))
		return item.owner;
	return vgpu_primary_owner(card);
}
