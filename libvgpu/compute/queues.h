/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.h - the gate of the hard limit for work that is not CUDA's: what a program puts into queues
 * of OpenCL, Vulkan and OpenGL. The time in which any is on the card is charged to the budget of CUDA's
 * launches. Each submission leaves a mark behind, an event or a fence, which shows the end of the work.
 */
#ifndef VGPU_COMPUTE_QUEUES_H
#define VGPU_COMPUTE_QUEUES_H

#include "../job/job.h"
#include "compute.h"

struct vgpu_mark;

/* ------------------------------------------------------------------------- the gate */
/* A submission between the gate and its mark. cards: of the job, a bit each. If the card is not
 * known, all that are possible. */
struct vgpu_submission {
	uint32_t cards;
	int cancel; /* its thread is not cancelled meanwhile */
};
/* Returns the cards that this process uses without CUDA, a bit each; 0: no gate throttles any card. */
static inline uint32_t vgpu_queues_cards(void)
{
	return likely(!LOAD(&vgpu_gate_any)) ? 0 : LOAD(&vgpu_state.other_cards);
}
/* Those of the cards whose gate throttles the job. */
uint32_t vgpu_queues_gated(uint32_t cards);
/* Waits until the work may go; on no card at once. */
void vgpu_queue_wait(uint32_t cards);
/* The work goes: after the wait, or before it if the work is on the card already. */
void vgpu_queue_begin(struct vgpu_submission *s, uint32_t cards);
/* mark: of the work; NULL: there is no work, the call has failed. */
void vgpu_queue_leave(const struct vgpu_submission *s, const struct vgpu_mark *mark);

/* ---------------------------------------------------------------------------- marks */
/* Calls of the API, which are made without a lock. */
struct vgpu_mark_kind {
	/* The work before the mark in its queue has ended, or failed. */
	bool (*ended)(const struct vgpu_mark *m);
	/* The work waits for something that the program alone does. It does not run, and is not
	 * charged. Only asked of marks with held_by. */
	bool (*held)(const struct vgpu_mark *m);
	void (*drop)(const struct vgpu_mark *m);
};
struct vgpu_mark {
	const struct vgpu_mark_kind *kind;
	void *queue;
	void *device; /* the mark ends with it; NULL: with nothing */
	uint64_t handle;
	void *held_by; /* NULL: nothing */
};

/* Returns what holds the work of a queue, or that before a mark with this handle; NULL: nothing.
 * Calls keep() for it, which does not wait, before anybody can drop it. */
void *vgpu_marks_held_by(const void *queue, uint64_t handle, void (*keep)(void *held_by));
/* Charges what is on the card, and removes marks of work that has ended. now: the work has just ended.
 * False: nothing is in a queue. */
bool vgpu_marks_look(bool now);
/* A device is about to go, with all work in its queues ended. */
void vgpu_marks_forget(const void *device);

#endif
