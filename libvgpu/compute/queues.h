/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.h - the gate of the hard limit for work that is not CUDA's: what a program puts into queues
 * of OpenCL, Vulkan and OpenGL. The time in which any is on the card is charged to the budget of CUDA's
 * launches.
 */
#ifndef VGPU_COMPUTE_QUEUES_H
#define VGPU_COMPUTE_QUEUES_H

#include "compute.h"
#include "marks.h"

/* A submission between the gate and its mark. cards: of the job, a bit each. If the card is not
 * known, all that are possible. */
struct vgpu_submission {
	uint32_t cards;
	int cancel; /* its thread is not cancelled meanwhile */
};
/* Those of the cards whose gate throttles the job. */
uint32_t vgpu_queues_gated(uint32_t cards);
/* Waits until the work may go. */
void vgpu_queue_wait(uint32_t cards);
/* The work goes: after the wait, or before it if the work is on the card already. */
void vgpu_queue_begin(struct vgpu_submission *s, uint32_t cards);
/* mark: of the work; NULL: there is no work, the call has failed. */
void vgpu_queue_leave(const struct vgpu_submission *s, const struct vgpu_mark *mark);

#endif
