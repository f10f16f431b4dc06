/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.h - the gate of the hard limit for work that is not CUDA's: what a program puts into queues
 * of OpenCL, Vulkan and OpenGL. The time in which any is on the card is charged to the budget of CUDA's
 * launches. Each submission leaves a mark behind, an event or a fence, which shows the end of the work.
 */
#ifndef VGPU_COMPUTE_QUEUES_H
#define VGPU_COMPUTE_QUEUES_H

#include "compute.h"

struct vgpu_mark;

/* ------------------------------------------------------------------------- the gate */
/* A submission between the gate and its mark. cards: of the job, a bit each. If the card is not
 * known, all that are possible. */
struct vgpu_submission {
	uint32_t cards;
	int cancel; /* its thread is not cancelled meanwhile */
};
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
/* Charges what is on the card, and removes marks of work that has ended. now: the work has just ended. */
void vgpu_marks_look(bool now);
/* The watcher's look. False: nothing is in a queue. */
bool vgpu_marks_tick(void);
/* A device is about to go, with all work in its queues ended. */
void vgpu_marks_forget(const void *device);
void vgpu_marks_nap(uint64_t ns);

/* ------------------------------------------------------- for the gate, with the lock held */
/* It comes before the lock of a card's gate. */
extern pthread_mutex_t vgpu_marks_lock;

struct vgpu_marked {
	unsigned entering;    /* submissions between the gate and their mark */
	unsigned unmarked;    /* submissions without a mark; they count while others are there */
	uint64_t seen_ns;     /* something was on the card, or nothing is */
	uint64_t progress_ns; /* work ended, or a submission passed the gate because none did */
	uint64_t mean_ns;     /* of what has ended */
};
extern struct vgpu_marked vgpu_marked[VGPU_MAX_CARDS];

/* How many submissions are on the card, and not held by the program. */
unsigned vgpu_marks_on(unsigned card);
/* There is no room for one more. */
bool vgpu_marks_full(unsigned on);
/* How long a submission takes, as far as is known. */
uint64_t vgpu_marks_mean(unsigned card);
/* Work begins, if there is none. */
void vgpu_marks_begin(unsigned card, uint64_t now);
/* False: there is no room, and the caller drops the mark. */
bool vgpu_marks_put(const struct vgpu_mark *mark, uint32_t cards, uint64_t now);
/* Charges up to that time; left: how many are still there. */
void vgpu_marks_charge(unsigned card, uint64_t until, unsigned left);

#endif
