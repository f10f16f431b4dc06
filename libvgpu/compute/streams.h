/* SPDX-License-Identifier: Apache-2.0 */
/* streams.h - what batches of one process's streams cost that were on the card beside each other.
 * With gate.lock held. */
#ifndef VGPU_COMPUTE_STREAMS_H
#define VGPU_COMPUTE_STREAMS_H

#include "gates.h"

/* Where work runs side by side: other jobs had work on the card meanwhile. */
bool vgpu_streams_in_company(const struct gate *g, const struct vgpu_stream_batch *b);

/* Other streams of this process had work on the card meanwhile. */
bool vgpu_streams_beside(const struct gate *g, const struct vgpu_stream_batch *b);

/* What a batch is charged that is to be charged so much for itself. usual: what its launches usually
 * take. span, busy: as for vgpu_batch_charge. company: other jobs had work in it, side by side. */
double vgpu_streams_charge(struct gate *g, const struct vgpu_stream_batch *b, double usual,
			   double span, double busy, double charge, bool company);

/* What is to be learned of a batch without company that took that time: how much of it was its own
 * at most. busy, held: as for vgpu_batch_charge. *slack, of which it is not known, may become more. */
double vgpu_streams_own(struct gate *g, const struct vgpu_stream_batch *b, double span, double busy,
			double held, double *slack);

/* All streams have been asked for what has completed: what is now known of their batches' time. */
void vgpu_streams_reaped(struct gate *g);

#endif
