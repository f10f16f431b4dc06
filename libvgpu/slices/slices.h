/* SPDX-License-Identifier: Apache-2.0 */
/* slices.h - sets the slices to those of the grant. */
#ifndef VGPU_SLICES_SLICES_H
#define VGPU_SLICES_SLICES_H

#include "../region_ops.h"

/* The reasons to set slices that have not changed. */
enum vgpu_look {
	VGPU_NO_LOOK,
	VGPU_NEW_GROUPS, /* groups have come that may have none yet */
	VGPU_READ_BACK,  /* whether all have it */
};

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, enum vgpu_look look);

#endif
