/* SPDX-License-Identifier: Apache-2.0 */
/* charge.h - what work is charged, and what it teaches. With gate.lock held. */
#ifndef VGPU_COMPUTE_CHARGE_H
#define VGPU_COMPUTE_CHARGE_H

#include "gates.h"

/* What a completed batch is charged, in nanoseconds. span: between its events, without the host's
 * time before the first launch. busy: the part of it that other streams were not charged for. slack:
 * the time in which the card can have waited for the host. held: for so long launches that it may
 * have waited for were held back. */
uint64_t vgpu_batch_charge(struct gate *g, const struct vgpu_stream_batch *b, double span,
			   double busy, double slack, double held, uint64_t now);

/* What a batch is charged whose end nobody measures: the time since its first launch. */
uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now);

/* Charges the job. advance: what was taken from the balance before. elapsed: the time for which the
 * work was on its way. */
void vgpu_gate_charge(struct gate *g, uint64_t charge, uint64_t advance, uint64_t elapsed);

/* Of so many nanoseconds up to now in which this process had work on the card, those that are
 * not counted for the job yet: they are now. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now);

/* The job has no work in flight, and launches some now. The idle time before is not counted. Other
 * processes wait for this work as if some had just completed, so that long kernels run in turn. */
void vgpu_gate_begin(struct gate *g, uint64_t now);

/* Charges work that is not CUDA's, from queues_since_ns up to that time. */
void vgpu_queues_charge(struct gate *g, uint64_t until);

#endif
