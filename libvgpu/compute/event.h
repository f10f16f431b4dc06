/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.h - events in the streams of the program. With gate.lock held, and not while
 * vgpu_events_barred(). False: the driver refused.
 */
#ifndef VGPU_COMPUTE_EVENT_H
#define VGPU_COMPUTE_EVENT_H

#include "gates.h"

/* Makes the event if need be. Releases the lock meanwhile, and the lane is busy. Not in a stream
 * that is captured, nor in one that waits for such a stream. */
bool vgpu_event_record(struct lane *l, CUevent *slot);
/* The same without a lane; *recording while the driver does. */
bool vgpu_event_put(struct gate *g, CUstream stream, CUevent *slot, bool *recording);
/* The context that it is of is current, or the driver says so. */
void vgpu_event_destroy(CUevent *slot);
/* Lets others have the lock for so long. */
void vgpu_gate_nap(struct gate *g, uint64_t ns);
#define NAP_NS 50000
/* Some 50 ms. */
#define NAPS 1000
/* Waits until no event of the lane is being recorded, but not for ever: the stream may be full
 * of work that waits for what the caller does next. */
void vgpu_event_wait(struct gate *g, const struct lane *l);
/* The same until none is on its way to the driver. */
void vgpu_event_recorded(struct gate *g, const struct lane *l);
/* Harmless to captures that are not known. */
CUresult vgpu_event_query(CUevent e);
/* The lane has an open batch, and its stream may be full, so that a record would wait. Entries that are no launches are counted for all
 * streams together. */
bool vgpu_event_blocks(struct lane *l);
bool vgpu_event_between(double *ns, CUevent from, CUevent to);
/* Events are of the context that is current when they are made, and so is the default stream
 * in which they are recorded. True: it is that one now, until vgpu_event_leave(). */
bool vgpu_event_enter(CUcontext ctx, bool *pushed);
void vgpu_event_leave(bool pushed);

#endif
