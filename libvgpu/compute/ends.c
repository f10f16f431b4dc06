/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends.c - see compute.h. What ends batches but a launch: a wait, other work in the stream, a
 * capture, the end of a stream or context, a fork.
 */
#include <string.h>

#include "batch.h"
#include "event.h"
#include "gate.h"
#include "lane.h"
#include "reap.h"
#include "wait.h"

/* stream: the stream that the program's call uses, or NULL. A full stream may wait for the program's next
 * step. So an event is only recorded in a full stream if the call uses it, too. */
static void end_work(struct lane *l, CUstream stream, bool other)
{
	if (!l->context || (stream && l->stream != stream))
		return;
	if (l->open && (stream || !vgpu_event_blocks(l)))
		vgpu_batch_end(l);
	if (other)
		l->foreign_ns = vgpu_now();
}

void vgpu_gate_boundary(CUstream stream, bool other)
{
	if (stream)
		vgpu_count_entry();
	if (vgpu_inside || vgpu_events_barred())
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		vgpu_gate_hold(g);
		for (unsigned k = 0; k < g->lanes && !vgpu_events_barred(); k++)
			end_work(&g->lane[k], stream, other);
		vgpu_gate_release(g);
	}
}

/* No launch came since the last event. The next one probably does, in the stream of the last. */
static void wait_before_event(struct gate *g, const struct lane *l)
{
	struct vgpu_launch next = {.stream = l->stream, .samples = 1};
	uint64_t since, now;
	bool events;

	since = vgpu_gate_wait(g, l->context->ctx, &next, &events, &now);
	vgpu_order_leave(&vgpu_state.cache.header->budget[g->card], since);
}

void vgpu_gate_record(CUstream stream)
{
	vgpu_gate_boundary(stream, false);
	if (vgpu_inside || vgpu_capturing())
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];
		struct lane *l;

		vgpu_gate_hold(g);
		l = g->last;
		if (l && l->context && l->stream == stream &&
		    l->thread == vgpu_stream_thread(stream)) {
			if (!l->launched && vgpu_only_budget(g))
				wait_before_event(g, l);
			else
				l->launched = false;
		}
		vgpu_gate_release(g);
	}
}

static void laneless_ended(struct gate *g, CUstream stream, uint64_t now)
{
	CUcontext ctx;

	if (!g->laneless_ns || !g->laneless_ctx || (stream && stream != g->laneless_stream) ||
	    vgpu_real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || ctx != g->laneless_ctx)
		return;
	vgpu_laneless_charge(g, now, true);
}

void vgpu_gate_waited(int card, CUstream stream, bool all)
{
	struct gate *g = &vgpu_gates[card];
	uint64_t now = vgpu_now();
	bool lasted = false;

	if (vgpu_inside || vgpu_events_barred())
		return;
	vgpu_gate_hold(g);
	for (unsigned k = 0; k < g->lanes; k++) {
		const struct lane *l = &g->lane[k];

		lasted |= l->closed && now - l->ring[l->first].opened_ns > BATCH_NS;
	}
	if (lasted && !vgpu_events_barred())
		vgpu_batch_reap(g, now);
	if (all)
		laneless_ended(g, stream, now);
	vgpu_gate_release(g);
}

/* Whoever is at event calls holds a gate's lock or has a lane that says so, and has looked for
 * captures with the lock held. */
void vgpu_gate_capture(void)
{
	if (vgpu_inside)
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		vgpu_gate_hold(g);
		for (unsigned k = 0; k < g->lanes; k++)
			vgpu_event_recorded(g, &g->lane[k]);
		vgpu_gate_release(g);
	}
}

/* The driver does not wait for room in a stream that the program destroys. */
static void end_lane(struct gate *g, struct lane *l)
{
	if (!vgpu_events_barred() && !vgpu_event_blocks(l))
		vgpu_batch_close(l);
	if (l->open)
		vgpu_lane_drop(g, l);
	l->stream = NULL;
}

void vgpu_gate_drop_stream(CUstream stream)
{
	if (vgpu_inside)
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		vgpu_gate_hold(g);
		for (unsigned k = 0; k < g->lanes; k++)
			if (g->lane[k].context && g->lane[k].stream == stream) {
				vgpu_event_wait(g, &g->lane[k]);
				end_lane(g, &g->lane[k]);
			}
		vgpu_gate_release(g);
	}
}

static void context_ends(struct gate *g, CUcontext ctx)
{
	struct gate_context *c = vgpu_context_find(g, ctx);

	if (!c)
		return;
	if (!vgpu_events_barred()) {
		for (unsigned i = 0; i < g->lanes; i++)
			if (g->lane[i].context == c && !vgpu_event_blocks(&g->lane[i]))
				vgpu_batch_end(&g->lane[i]);
		vgpu_batch_reap(g, vgpu_now());
	}
	c = vgpu_context_find(g, ctx);
	if (c)
		c->ends++;
	g->last = NULL; /* launches look for their context */
}

void vgpu_gate_ends(CUcontext ctx)
{
	if (vgpu_inside || !ctx)
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		vgpu_gate_hold(g);
		context_ends(g, ctx); /* none begins to record in it any more */
		for (unsigned k = 0; k < g->lanes; k++)
			if (g->lane[k].context && g->lane[k].context->ctx == ctx)
				vgpu_event_wait(g, &g->lane[k]);
		vgpu_gate_release(g);
	}
}

static void context_ended(struct gate *g, CUcontext ctx, bool gone)
{
	struct gate_context *c = vgpu_context_find(g, ctx);

	if (!c)
		return;
	c->ends -= c->ends != 0;
	if (!gone)
		return;
	for (unsigned i = 0; i < g->lanes; i++) {
		struct lane *l = &g->lane[i];

		if (l->context != c)
			continue;
		bool busy = l->busy, recording = l->recording;

		vgpu_lane_drop(g, l);
		memset(l, 0, sizeof *l); /* its events went with the context */
		/* A thread that still records in it gives the lane back. */
		l->busy = busy;
		l->recording = recording;
	}
	g->last = NULL;
	memset(c, 0, sizeof *c);
}

void vgpu_gate_ended(CUcontext ctx, bool gone)
{
	if (vgpu_inside || !ctx)
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		vgpu_gate_hold(&vgpu_gates[i]);
		context_ended(&vgpu_gates[i], ctx, gone);
		vgpu_gate_release(&vgpu_gates[i]);
	}
}

void vgpu_gate_in_child(void)
{
	/* Threads of the parent may have held these. Its work and events are not
	 * ours, and CUDA does not work across fork anyway. */
	vgpu_inside = false;
	pthread_mutex_init(&vgpu_any_lock, NULL);
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		pthread_mutex_init(&vgpu_gates[i].lock, NULL);
		memset(vgpu_gates[i].lane, 0, vgpu_gates[i].lanes * sizeof vgpu_gates[i].lane[0]);
		memset(vgpu_gates[i].context, 0, sizeof vgpu_gates[i].context);
		vgpu_gates[i].inflight_ns = vgpu_gates[i].more_ns = vgpu_gates[i].owed_ns = 0;
		vgpu_gates[i].queues_since_ns = vgpu_gates[i].laneless_ns = 0;
		vgpu_gates[i].last = NULL;
	}
}
