/* SPDX-License-Identifier: Apache-2.0 */
/* compute.h - the gate of the hard cap, as hooks and the watcher use it. */
#ifndef VGPU_COMPUTE_COMPUTE_H
#define VGPU_COMPUTE_COMPUTE_H

#include "../base/util.h"
#include "../driver/cuda_abi.h"
#include "../region_ops.h"

struct vgpu_launch {
	int card;   /* -1: not gated */
	bool waits; /* the driver may return when the work is done */
	bool refused;
	bool known; /* its key was measured before */
	CUstream stream;
	uint64_t key; /* function and grid, or graph */
	struct vgpu_stream_batch *batch;
	struct lane *lane;
	bool past;                /* went past a budget that was used up (vgpu_gate_past) */
	uint32_t samples;         /* so often its key was measured before */
	uint64_t est_ns, more_ns; /* what it is taken for, and may take beyond that */
};
/* One flag for the whole process: some card of this job is gated now. */
extern uint32_t vgpu_gate_any;
/* NULL as long as a thread follows what gresd says. Else the gate holds the process by its
 * budget, and launches call this now and then. */
extern void (*vgpu_unwatched)(void);
/* This thread is in a call that has passed the gate: what it launches meanwhile is part of that. */
extern __thread bool vgpu_covered __attribute__((tls_model("initial-exec")));
/* Sets all of l but waits, which the caller says. */
void vgpu_gate_enter(struct vgpu_launch *l, CUstream stream, uint64_t key, uint64_t unknown_ns);
void vgpu_gate_leave(struct vgpu_launch *l, CUresult result);
/* Ends the open batch of a stream (CU_STREAM_LEGACY for the default one), or
 * of all streams when stream is NULL: work after it is another batch. other: what comes next
 * in the stream takes its time, but is no work of the card's. */
void vgpu_gate_boundary(CUstream stream, bool other);
/* Entries of all streams that are no launches, such as small copies. The watcher and other threads record
 * no event in a stream that may be full. A lost increment does no harm. */
extern uint32_t vgpu_other_entries;
static inline void vgpu_count_entry(void)
{
	__atomic_store_n(&vgpu_other_entries,
			 __atomic_load_n(&vgpu_other_entries, __ATOMIC_RELAXED) + 1,
			 __ATOMIC_RELAXED);
}
/* The program records an event in the stream: its open batch ends. If the event is the first of two that
 * measure a launch, the launch's wait for the budget comes before it. */
void vgpu_gate_record(CUstream stream);
/* From this size on a copy between card and host counts as other work in its stream. */
#define SMALL_BYTES (64u << 10)
/* Returns when no thread of ours is at event calls any more that began before
 * vgpu_captures was raised. */
void vgpu_gate_capture(void);
/* A stream is about to go: its batches end. */
void vgpu_gate_drop_stream(CUstream stream);
/* A context may end in a call of the driver that follows: no event of it is touched until
 * vgpu_gate_ended(), which forgets it if it is gone. */
void vgpu_gate_ends(CUcontext ctx);
void vgpu_gate_ended(CUcontext ctx, bool gone);
/* The host has waited for work. Long work is charged at once: the process may end now. all: for all work of
 * a stream (NULL: of the context). */
void vgpu_gate_waited(int card, CUstream stream, bool all);
/* Watcher's turn: closes idle batches, reaps completed ones. Returns true
 * while any is open or in flight. */
bool vgpu_gate_tick(void);
/* Takes over card's schedule from the grant. */
void vgpu_gate_schedule(int card, const struct vgpu_schedule *s);
/* After a fork, in the child: empty and unlocked. */
void vgpu_gate_in_child(void);

#endif
