/* SPDX-License-Identifier: Apache-2.0 */
/* own_time.h - which part of the time is the job's own. With gate.lock held. */
#ifndef VGPU_COMPUTE_OWN_TIME_H
#define VGPU_COMPUTE_OWN_TIME_H

#include "gates.h"

/* The job's own time up to now, in nanoseconds: wall time, multiplied by its weight
 * while other jobs had work on the card. */
uint64_t vgpu_gate_own(const struct gate *g, uint64_t now);
/* s holds from now on. */
void vgpu_gate_follow(struct gate *g, const struct vgpu_schedule *s, uint64_t now);

#endif
