/* SPDX-License-Identifier: Apache-2.0 */
/* reap.h - what completed batches cost the card. With gate.lock held. */
#ifndef VGPU_COMPUTE_REAP_H
#define VGPU_COMPUTE_REAP_H

#include "gates.h"

/* Takes completed batches off, charges them, learns. */
void vgpu_batch_reap(struct gate *g, uint64_t now);
/* Empties a lane. What is left of it is charged by its estimates, and at least the time since
 * it was launched: no event will tell. */
void vgpu_lane_drop(struct gate *g, struct lane *l);

#endif
