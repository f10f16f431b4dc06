/* SPDX-License-Identifier: Apache-2.0 */
/* charge.h - what work is charged, and what it teaches. With gate.lock held. */
#ifndef VGPU_COMPUTE_CHARGE_H
#define VGPU_COMPUTE_CHARGE_H

#include "gates.h"

/* What a completed batch is charged, in nanoseconds.
 * busy: the time that it took, without what other streams were charged for. held: for so
 * long launches that it may have waited for were held back. */
uint64_t vgpu_batch_charge(struct gate *g, struct vgpu_stream_batch *b, double span, double busy,
			   double slack, double held, uint64_t now);

/* Of so many nanoseconds up to now in which this process had work on the card, those that are
 * not counted for the job yet: they are now. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now);

/* The job has no work in flight, and launches some now. The idle time before is not counted. Other
 * processes wait for this work as if some had just completed, so that long kernels run in turn. */
void vgpu_gate_begin(struct gate *g, uint64_t now);

/* What work is charged that was launched in this batch or behind it in its lane, and will not
 * be measured. */
uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now);

/* What work of the lane was charged too little by its estimates, at least: it took the time
 * from the lane's proof to the batch's start, less the host's and what was charged since. */
uint64_t vgpu_batch_beyond(struct gate *g, const struct lane *l, const struct vgpu_stream_batch *b,
			   uint64_t now);

/* Charges work that is not CUDA's, from queues_since_ns up to that time. */
void vgpu_queues_charge(struct gate *g, uint64_t until);

#endif
