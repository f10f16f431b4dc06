/* SPDX-License-Identifier: Apache-2.0 */
/* slices.h - keeps the slices at what the grant says. */
#ifndef VGPU_SLICES_SLICES_H
#define VGPU_SLICES_SLICES_H

#include "../region_ops.h"

/* What to do beside following a change of the slice. */
enum vgpu_look {
	VGPU_NO_LOOK,
	VGPU_NEW_GROUPS, /* groups have come that may have none yet */
	VGPU_READ_BACK,  /* whether all have it */
};

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, enum vgpu_look look);

#endif
