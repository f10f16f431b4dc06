/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - launches in a row, between two events. With gate.lock held. */
#ifndef VGPU_COMPUTE_BATCH_H
#define VGPU_COMPUTE_BATCH_H

#include "gates.h"

/* Returns true if the launch is a batch of its own. This is so if its length is unknown, or launches of
 * its function differ, or the job's budget is low and the card waits for the host between launches. */
bool vgpu_batch_alone(const struct gate *g, const struct vgpu_cost *cost,
		      const struct vgpu_launch *launch, int64_t balance, uint64_t now);
/* The batch that takes the next launch, opened if need be. */
struct vgpu_stream_batch *vgpu_batch_open(struct gate *g, struct lane *l,
					  const struct vgpu_cost *cost,
					  const struct vgpu_launch *launch, uint64_t now);
/* Ends the open batch unless a launch is between gate and driver. Any context may be current. */
void vgpu_batch_close(struct lane *l);
/* The same, where this thread can see to it that the batch is measured. */
void vgpu_batch_end(struct lane *l);
/* Records the end of the open batch behind its last launch; of a lane with marks. */
void vgpu_batch_mark(struct lane *l);

#endif
