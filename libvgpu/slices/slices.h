/* SPDX-License-Identifier: Apache-2.0 */
/* slices.h - keeps the slices at what the grant says. */
#ifndef VGPU_SLICES_SLICES_H
#define VGPU_SLICES_SLICES_H

#include "../region_ops.h"

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, bool force);

#endif
