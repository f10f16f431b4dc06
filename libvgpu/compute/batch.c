/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - see batch.h. Launches in a row, between an event before and an event after. */
#include "batch.h"
#include "../atomic.h"
#include "beside.h"
#include "charge.h"
#include "event.h"
#include "own_time.h"
#include "reap.h"

/* Elapsed times are float milliseconds: 1 us of resolution at ten seconds. */
#define ANCHOR_NS 5000000000u
/* With this much credit, a job's charges need not be exact. That saves events, which are most of the
 * host's cost of a gated launch. */
#define AMPLE_NS (BURST_NS / 2)
/* With several streams, the share of each in a measured time is unknown. So one in
 * AMONG_STREAMS_EVERY launches is measured alone, to see whether launches differ. After GAPS_NS
 * without a second stream, the gate assumes that there is only one. */
#define AMONG_STREAMS_EVERY 64

bool vgpu_batch_alone(const struct gate *g, const struct vgpu_cost *cost,
		      const struct vgpu_launch *launch, int64_t balance, uint64_t now)
{
	if (!launch->samples || launch->waits)
		return true;
	if (g->schedule.others || g->beside)
		return false;
	if (cost->varies)
		return true;
	if (!vgpu_host_bound(g, now))
		return false;
	if (g->gaps_measured) /* until it has a value, the estimates bound the work in gaps */
		return g->gaps_idle == 0 && launch->samples < FEW_SAMPLES;
	if (balance >= AMPLE_NS)
		return false;
	return now - g->several_ns > GAPS_NS || now / 4 % AMONG_STREAMS_EVERY == 0;
}

/* The newest of the closed batches of a lane while it runs; else NULL. */
static struct vgpu_stream_batch *running_before(struct lane *l)
{
	struct vgpu_stream_batch *before;

	if (!l->closed)
		return NULL;
	before = &l->ring[(l->first + l->closed - 1) % RING];
	if (before->unmeasured || vgpu_event_query(before->end) != CUDA_ERROR_NOT_READY)
		return NULL;
	return before;
}

static bool record_anchor(CUevent *slot, struct lane *l)
{
	bool pushed, ok = vgpu_event_enter(l->context->ctx, &pushed) && vgpu_event_record(l, slot);

	vgpu_event_leave(pushed);
	return ok;
}

/* The zero of a context's time line, and a later one before float milliseconds get coarse.
 * When a batch opens: a stream that is destroyed with its work on the way has none later. */
static void place_anchor(struct lane *l, uint64_t now)
{
	struct gate_context *c = l->context;

	if (!c->anchored) {
		c->anchored = record_anchor(&c->anchor, l);
		c->anchor_host_ns = now;
	} else if (!c->next_recorded && now - c->anchor_host_ns > ANCHOR_NS) {
		c->next_recorded = record_anchor(&c->next_anchor, l);
	}
}

/* The newest batch goes on: its end is recorded once more. */
static struct vgpu_stream_batch *open_again(struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + --l->closed) % RING];

	b->alone = false;
	l->open = true;
	return b;
}

struct vgpu_stream_batch *vgpu_batch_open(struct gate *g, struct lane *l,
					  const struct vgpu_cost *cost,
					  const struct vgpu_launch *launch, uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING], *before;
	int64_t balance = LOAD(&vgpu_state.cache.header->budget[g->card].balance_ns);
	bool alone = vgpu_batch_alone(g, cost, launch, balance, now);

	if (l->open && !alone && !b->alone)
		return b;
	if (l->open) {
		vgpu_batch_close(l);
		if (l->open)
			return b; /* another thread is in it */
	}
	if (!l->closed)
		l->first = 0; /* so that few entries have events */
	/* One entry stays unused: its end may be the start of the oldest. */
	if (l->closed >= RING - 2)
		vgpu_batch_reap(g, now);
	if (l->closed >= RING - 2)
		return open_again(l);
	b = &l->ring[(l->first + l->closed) % RING];
	l->open = true; /* one of those with work, from now on */
	vgpu_gate_beside(g, now);
	*b = (struct vgpu_stream_batch){.own_start = b->own_start,
					.end = b->end,
					.asked_ns = now,
					.opened_ns = now,
					.beside = g->beside,
					.held_ns = l->held_ns,
					.alone = alone};
	vgpu_gate_count(g, 0, now); /* if nothing was on its way, there was no work up to here */
	if (vgpu_events_barred()) {
		b->unmeasured = true;
	} else if ((before = running_before(l)) && before->last_ns > l->foreign_ns) {
		b->start = before->end;
		b->tight = true;
	} else if (vgpu_event_record(l, &b->own_start)) {
		b->start = b->own_start;
		b->opened_ns = vgpu_now();
		b->tight = before; /* and what waits between them is left out */
	} else {
		b->unmeasured = true;
	}
	b->own_ns = vgpu_gate_own(g, b->opened_ns);
	if (vgpu_several_lanes(g)) {
		g->several_ns = b->opened_ns;
		if (!b->unmeasured)
			place_anchor(l, now);
	}
	return b;
}

static bool can_record(const struct lane *l)
{
	return !vgpu_events_barred() && (!l->thread || l->thread == &vgpu_this_thread);
}

void vgpu_batch_mark(struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];

	if (l->open && !l->busy && !b->unmeasured && !l->context->ends && can_record(l) &&
	    vgpu_event_record(l, &b->end))
		b->marked = b->launches;
}

/* Records the end of the open batch. False: that cannot be. */
static bool record_end(struct lane *l, struct vgpu_stream_batch *b)
{
	bool pushed, ok;

	if (!can_record(l)) {
		STORE(&l->marks, true); /* launches look without the lock */
		return b->marked == b->launches;
	}
	STORE(&l->marks, false);
	ok = vgpu_event_enter(l->context->ctx, &pushed) && vgpu_event_record(l, &b->end);
	vgpu_event_leave(pushed);
	return ok;
}

void vgpu_batch_close(struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];

	if (!l->open || l->busy || vgpu_batch_held(b) || l->context->ends)
		return;
	if (b->launches == 0) {
		l->open = false;
		return;
	}
	b->solid = b->tight && running_before(l);
	if (b->launches != b->ticked)
		b->last_ns = vgpu_now();
	b->entries = __atomic_load_n(&vgpu_other_entries, __ATOMIC_RELAXED);
	if (!b->unmeasured && !record_end(l, b))
		b->unmeasured = true;
	if (!l->open)
		return; /* the stream or its context has ended meanwhile */
	b->recorded_ns = vgpu_now();
	l->open = false;
	l->closed++;
}

void vgpu_batch_end(struct lane *l)
{
	if (can_record(l))
		vgpu_batch_close(l);
}
