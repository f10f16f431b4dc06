/* SPDX-License-Identifier: Apache-2.0 */
/* beside.h - who else of the job has work on the card. With gate.lock held. */
#ifndef VGPU_COMPUTE_BESIDE_H
#define VGPU_COMPUTE_BESIDE_H

#include "gates.h"

/* Estimated work of the other processes of the job; *procs: how many have some. */
uint64_t vgpu_inflight_beside(const struct gate *g, uint64_t now, uint32_t *procs);
/* Sets gate.procs to the number of other processes of the job that have work on the card. For
 * the gate's second count, adds the other contexts of this process that have work. */
void vgpu_gate_beside(struct gate *g, uint64_t now);

#endif
