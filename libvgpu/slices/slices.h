/* SPDX-License-Identifier: Apache-2.0 */
/* slices.h - gives the process's channel groups the time slices of the grant. */
#ifndef VGPU_SLICES_SLICES_H
#define VGPU_SLICES_SLICES_H

#include "../region_ops.h"

/* The reasons to set slices that have not changed. */
enum vgpu_look {
	VGPU_NO_LOOK,
	VGPU_NEW_GROUPS, /* new groups may have no slice yet */
	VGPU_READ_BACK,  /* check that all groups still have it */
};

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, enum vgpu_look look);

#endif
