/* SPDX-License-Identifier: Apache-2.0 */
/* wait.h - when a launch may go. With gate.lock held. */
#ifndef VGPU_COMPUTE_WAIT_H
#define VGPU_COMPUTE_WAIT_H

#include "gates.h"

bool vgpu_takes_turns(const struct gate *g);
/* Work that a process may have in flight, in nanoseconds. */
uint64_t vgpu_quantum(const struct gate *g);
/* Waits, with the lock released while asleep, until work of est nanoseconds may go into a
 * stream of a context.
 * *went: the time at which it may. *events: event calls are allowed then (no capture is
 * open). Returns what to leave the order with (vgpu_order_leave) when the work has been
 * charged. */
uint64_t vgpu_gate_wait(struct gate *g, CUcontext ctx, CUstream stream, uint64_t est, bool *events,
			uint64_t *went);
/* Tells gresd when the job's work will be done; the watcher's, in turns. */
void vgpu_gate_turns(const struct gate *g, uint64_t now);

#endif
