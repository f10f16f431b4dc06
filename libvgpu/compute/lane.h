/* SPDX-License-Identifier: Apache-2.0 */
/* lane.h - the lane of a launch. With gate.lock held. */
#ifndef VGPU_COMPUTE_LANE_H
#define VGPU_COMPUTE_LANE_H

#include "gates.h"

/* The one of a context, or NULL. */
struct gate_context *vgpu_context_find(struct gate *g, CUcontext ctx);
/* The lane of a stream in the current context, or NULL when none is free. */
struct lane *vgpu_lane_of(struct gate *g, CUcontext ctx, CUstream stream);
/* All lanes have work, or as many contexts as there are places for. */
bool vgpu_lanes_taken(const struct gate *g);
/* The lane of the next launch. While another thread records in it, this launch waits, as it would for
 * the full stream. It waits up to 50 ms for a lane, and for a place for its batch. NULL: there is no
 * lane. */
struct lane *vgpu_lane_free(struct gate *g, CUcontext ctx, CUstream stream);

#endif
