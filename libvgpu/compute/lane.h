/* SPDX-License-Identifier: Apache-2.0 */
/* lane.h - the lane of a launch. With gate.lock held. */
#ifndef VGPU_COMPUTE_LANE_H
#define VGPU_COMPUTE_LANE_H

#include "gates.h"

/* The one of a context, or NULL. */
struct gate_context *vgpu_context_find(struct gate *g, CUcontext ctx);
/* The lane of a stream in the current context, or NULL when none is free. */
struct lane *vgpu_lane_of(struct gate *g, CUcontext ctx, CUstream stream);
/* The lane of the next launch. While another thread records in it, this launch waits, as it would for
 * the full stream. It waits up to 50 ms for a lane, and for a place for its batch. NULL: there is no
 * lane. */
struct lane *vgpu_lane_free(struct gate *g, CUcontext ctx, CUstream stream);

/* Charges a launch that has no lane, so no events. vgpu_laneless_charge then charges the time until a lane
 * is free, or until the host has waited for the launch: up to then, it may be on the card. ended: the host
 * has waited. */
void vgpu_laneless_launch(struct gate *g, CUcontext ctx, const struct vgpu_launch *l, uint64_t now);
void vgpu_laneless_charge(struct gate *g, uint64_t now, bool ended);

#endif
