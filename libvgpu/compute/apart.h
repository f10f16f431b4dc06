/* SPDX-License-Identifier: Apache-2.0 */
/*
 * apart.h - launches for which there is no lane, as all have work on the way: each is measured
 * by itself, between two events of its own. With gate.lock held.
 */
#ifndef VGPU_COMPUTE_APART_H
#define VGPU_COMPUTE_APART_H

#include "gates.h"

struct vgpu_apart {
	struct vgpu_apart *next;
	CUcontext ctx;   /* NULL: gone, and its events with it */
	unsigned ends;   /* so many calls that may end it have not returned */
	bool entered;    /* between the gate and its end event */
	bool busy;       /* an event is to be recorded, without the lock */
	bool recording;  /* and the driver does */
	bool unmeasured; /* nothing will tell when it has ended */
	struct vgpu_stream_batch batch;
};

/* The launch goes without a lane. NULL: nor can it be measured so. */
struct vgpu_apart *vgpu_apart_enter(struct gate *g, CUcontext ctx, const struct vgpu_launch *l,
				    uint64_t now);
/* It has been made, or has failed. */
void vgpu_apart_leave(struct gate *g, const struct vgpu_launch *l, CUresult result);
/* One that has completed, and is taken off; NULL: none has. */
struct vgpu_apart *vgpu_apart_completed(struct gate *g);
/* One of a context that is gone, the same. */
struct vgpu_apart *vgpu_apart_gone(struct gate *g, CUcontext ctx);
void vgpu_apart_free(struct vgpu_apart *a);
/* A call that may end the context begins, or has returned. */
void vgpu_apart_ends(struct gate *g, CUcontext ctx, bool begins);
/* As vgpu_event_wait(), for a context, and vgpu_event_recorded(), for all. */
void vgpu_apart_wait(struct gate *g, CUcontext ctx);
void vgpu_apart_recorded(struct gate *g);

#endif
