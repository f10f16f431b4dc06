/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.h - what programs have put into queues of OpenCL, Vulkan and OpenGL, and what has ended of it: each
 * submission leaves a mark behind, which tells.
 */
#ifndef VGPU_COMPUTE_MARKS_H
#define VGPU_COMPUTE_MARKS_H

#include "../base/util.h"
#include "../region.h"

struct vgpu_mark;
/* Calls of the API, which are made without a lock. */
struct vgpu_mark_kind {
	/* The work before the mark in its queue has ended, or failed. */
	bool (*ended)(const struct vgpu_mark *m);
	/* What the work waits for has not happened. The program alone makes it happen: nothing runs,
	 * and nothing is charged. Not asked of marks without held_by. */
	bool (*held)(const struct vgpu_mark *m);
	void (*drop)(const struct vgpu_mark *m);
};
struct vgpu_mark {
	const struct vgpu_mark_kind *kind;
	void *queue;
	void *device; /* goes with it; NULL: by itself */
	uint64_t handle;
	void *held_by; /* NULL: nothing */
	bool ours;     /* the handle: no other work can wait for it */
};

/* What holds the work of a queue, or that before a mark of such a handle; NULL: nothing. keep() is
 * called for it before anybody can drop it, and does not wait. */
void *vgpu_marks_held_by(const void *queue, uint64_t handle, void (*keep)(void *held_by));
/* Charges what is on the card, and takes what has ended from it. now: what has ended has just done
 * so; else some time since the last look. */
void vgpu_marks_look(bool now);
/* The watcher's look: whether anything is in a queue. */
bool vgpu_marks_tick(void);
/* A device is about to go, with all work in its queues ended. */
void vgpu_marks_forget(const void *device);
/* After a fork, in the child: there is none. */
void vgpu_marks_in_child(void);
/* Before the first: no call of the API is made once the program ends. */
void vgpu_marks_end_with_program(void);
void vgpu_marks_nap(uint64_t ns);

/* ------------------------------------------------------- for the gate, with the lock held */
/* It comes before the lock of a card's gate. */
extern pthread_mutex_t vgpu_marks_lock;

/* What the marks on a card say. */
struct vgpu_marked {
	unsigned entering; /* submissions between the gate and their mark */
	unsigned unmarked; /* and those without one, as long as others are there */
	uint64_t seen_ns;  /* something was on the card, or nothing is */
	uint64_t progress_ns;
	uint64_t mean_ns, longest_ns; /* of what has ended */
	unsigned stuck;               /* so many went since, for nothing did */
};
extern struct vgpu_marked vgpu_marked[VGPU_MAX_CARDS];

/* So many submissions are on the card, and not held by the program. */
unsigned vgpu_marks_on(unsigned card);
bool vgpu_marks_full(void);
/* How long a submission takes, as far as is known. */
uint64_t vgpu_marks_mean(unsigned card);
/* Work begins, if there is none. */
void vgpu_marks_begin(unsigned card, uint64_t now);
/* False: *mark is to be dropped. Either there is no room, and the work counts as long as any other is
 * there; or it has taken the place of that one, which waits for the same in the same queue. */
bool vgpu_marks_put(struct vgpu_mark *mark, uint32_t cards, uint64_t now);
/* Charges up to that time; left: so many are still there. */
void vgpu_marks_charge(unsigned card, uint64_t until, unsigned left);

#endif
