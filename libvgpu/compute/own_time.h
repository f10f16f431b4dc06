/* SPDX-License-Identifier: Apache-2.0 */
/* own_time.h - which part of the time is the job's own. With gate.lock held. */
#ifndef VGPU_COMPUTE_OWN_TIME_H
#define VGPU_COMPUTE_OWN_TIME_H

#include "gates.h"

/* The job's own time up to now, in nanoseconds: wall time, multiplied by its weight
 * while other jobs had work on the card. */
uint64_t vgpu_gate_own(const struct gate *g, uint64_t now);
/* What part of the time since then was the job's own; own_ns: of the gate then. Other jobs come and go
 * while a batch is on its way: what holds when it is seen to have ended does not say. */
double vgpu_own_part(const struct gate *g, uint64_t own_ns, uint64_t since, uint64_t now);
/* s holds from now on. */
void vgpu_gate_follow(struct gate *g, const struct vgpu_schedule *s, uint64_t now);

#endif
