/* SPDX-License-Identifier: Apache-2.0 */
/* charge.h - what work is charged, and what it teaches. With gate.lock held. */
#ifndef VGPU_COMPUTE_CHARGE_H
#define VGPU_COMPUTE_CHARGE_H

#include "gates.h"

/* Returns the charge of a completed batch, in nanoseconds.
 *
 * span: the time between its events, without the host's time before the first launch.
 *
 * busy: the part of span that no other stream was charged.
 *
 * slack: how long the card may have waited for the host.
 *
 * held: how long launches were throttled that the batch may have waited for. */
uint64_t vgpu_batch_charge(struct gate *g, const struct vgpu_stream_batch *b, double span,
			   double busy, double slack, double held, uint64_t now);

/* Returns the charge of a batch whose end is not measured: the time since its first launch. */
uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now);

/* Charges the job. advance: the time already taken from the balance. elapsed: the wall time between
 * the launch of the work and its end. */
void vgpu_gate_charge(struct gate *g, uint64_t charge, uint64_t advance, uint64_t elapsed);

/* This process had work on the card for ns nanoseconds up to now. Counts the part that is not yet
 * counted for the job, and returns it. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now);

/* The job has no work in flight, and launches some now. The idle time before is not counted. Other
 * processes wait for this work as if some had just completed, so that long kernels run in turn. */
void vgpu_gate_begin(struct gate *g, uint64_t now);

/* Charges work that is not CUDA's, from queues_since_ns up to that time. */
void vgpu_queues_charge(struct gate *g, uint64_t until);

#endif
