/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h - which launches are measured. With gate.lock held. */
#ifndef VGPU_COMPUTE_MEASURE_H
#define VGPU_COMPUTE_MEASURE_H

#include "gates.h"

/* So may a launch join a trusted batch. */
bool vgpu_measure_known(uint32_t samples, uint64_t est_ns);
/* Its cost was learned, or is in doubt, from what it took beside work of other jobs, and now the
 * job is without company: each launch is measured by itself until it is known. */
bool vgpu_measure_suspect(const struct gate *g, const struct vgpu_cost *cost);
/* Launches of the key differ in length: a batch of several does not tell their time from the host's.
 * With neighbors or other work of the job, the time of one launch does not tell its length either. */
bool vgpu_measure_each(const struct gate *g, const struct vgpu_cost *cost);
/* Whether a batch that opens now goes by its estimates. */
bool vgpu_measure_trust(struct gate *g, const struct lane *l, bool known, uint32_t beside,
			uint64_t now);
/* Whether a launch that opens a batch, and whose cost is known, is to be measured alone. */
bool vgpu_measure_alone(const struct gate *g, const struct lane *l, const struct vgpu_cost *cost,
			uint64_t est_ns, uint64_t now);
/* The same of any launch, as far as that is not left to chance. balance_ns: of the job's
 * budget. */
bool vgpu_measure_unproven(const struct gate *g, const struct lane *l, const struct vgpu_cost *cost,
			   uint64_t est_ns, int64_t balance_ns);

#endif
