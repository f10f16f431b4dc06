/* SPDX-License-Identifier: Apache-2.0 */
/* wait.h - when a launch may go. With gate.lock held. */
#ifndef VGPU_COMPUTE_WAIT_H
#define VGPU_COMPUTE_WAIT_H

#include "gates.h"

/* Work that a process may have in flight, in nanoseconds. */
uint64_t vgpu_quantum(const struct gate *g);
/* The launch, and what is in flight, may take far longer than they are taken for. */
bool vgpu_may_be_long(const struct gate *g, const struct vgpu_launch *l);
/* Waits, with the lock released while asleep, until a launch of a context may go.
 * *went: the time at which it may. *events: event calls are allowed then (no capture is
 * open). Returns what to leave the order with (vgpu_order_leave) when the work has been
 * charged. */
uint64_t vgpu_gate_wait(struct gate *g, CUcontext ctx, struct vgpu_launch *l, bool *events,
			uint64_t *went);

#endif
