/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.h - the gate of the hard cap for work that is not CUDA's: what a program puts into queues
 * of OpenCL, Vulkan and OpenGL. The time in which any is on the card is charged to the budget that CUDA's
 * launches are charged to.
 */
#ifndef VGPU_COMPUTE_QUEUES_H
#define VGPU_COMPUTE_QUEUES_H

#include "compute.h"
#include "marks.h"

/* A submission between the gate and its mark. cards: of the job, a bit each; where it is not known
 * which, all that it may be. */
struct vgpu_submission {
	uint32_t cards;
	int cancel; /* its thread is not cancelled meanwhile */
};
/* Those of the cards on which a budget holds the job. */
uint32_t vgpu_queues_gated(uint32_t cards);
/* Waits until the work may go. */
void vgpu_queue_enter(struct vgpu_submission *s, uint32_t cards);
/* The same in two: what is on the card already must not wait, but who put it there may after it. */
void vgpu_queue_wait(uint32_t cards);
void vgpu_queue_begin(struct vgpu_submission *s, uint32_t cards);
/* mark: of the work; NULL: there is no work, the call has failed. */
void vgpu_queue_leave(const struct vgpu_submission *s, struct vgpu_mark *mark);

#endif
