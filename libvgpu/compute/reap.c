/* SPDX-License-Identifier: Apache-2.0 */
/* reap.c - see reap.h. What completed batches cost the card. */
#include "reap.h"
#include "../atomic.h"
#include "beside.h"
#include "charge.h"
#include "event.h"

/* A first launch takes the host so long at most. */
#define LAUNCH_GAP_NS 10000.0

/* On an idle card the start event is passed at once, and the first kernel comes when the host has
 * launched it: that time is no work. */
static double launch_gap(const struct vgpu_stream_batch *b, double span)
{
	double gap = (double)b->first_ns - (double)b->opened_ns;

	if (b->tight || gap < 0)
		return 0;
	gap = gap < LAUNCH_GAP_NS ? gap : LAUNCH_GAP_NS;
	return gap < span / 2 ? gap : span / 2;
}

static void move_anchor(struct gate_context *c, uint64_t now)
{
	double moved;

	if (!c->next_recorded || vgpu_event_query(c->next_anchor) != CUDA_SUCCESS)
		return;
	if (vgpu_event_between(&moved, c->anchor, c->next_anchor)) {
		CUevent old = c->anchor;

		c->anchor = c->next_anchor;
		c->next_anchor = old;
		vgpu_cover_shift(&c->cover, moved);
		c->anchor_host_ns = now;
	}
	c->next_recorded = false;
}

/* Time of this batch that no other stream's batch has been charged for. */
static double not_covered(struct gate_context *c, const struct vgpu_stream_batch *b, double span,
			  uint64_t now)
{
	double end;

	move_anchor(c, now);
	if (!c->anchored || !vgpu_event_between(&end, c->anchor, b->end))
		return span;
	return vgpu_cover_add(&c->cover, end - span, end);
}

/* Time in which the card can have waited for the host inside the batch. */
static double slack_of(const struct vgpu_stream_batch *b)
{
	return b->solid || b->last_ns < b->first_ns ? 0 : (double)(b->last_ns - b->first_ns);
}

static void settle(struct gate *g, const struct vgpu_stream_batch *b, uint64_t charge,
		   uint64_t elapsed)
{
	vgpu_gate_charge(g, charge, b->est_ns, elapsed);
	g->inflight_ns -= g->inflight_ns < b->est_ns ? g->inflight_ns : b->est_ns;
	g->more_ns -= g->more_ns < b->more_ns ? g->more_ns : b->more_ns;
	STORE(&vgpu_my(g->card)->inflight_ns, g->inflight_ns);
}

static void unmeasured(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	uint64_t ns = b->est_ns + b->more_ns;

	vgpu_gate_count(g, (double)ns, now);
	settle(g, b, ns, ns);
}

/* A batch whose end has come. gate.beside and gate.several_ns are of now. */
static void account(struct gate *g, const struct lane *l, struct vgpu_stream_batch *b, uint64_t now)
{
	double span, busy, slack = slack_of(b);
	uint64_t charge, held = l->held_ns - b->held_ns;

	if (!b->launches) {
		settle(g, b, 0, 0);
		return;
	}
	if (!vgpu_event_between(&span, b->start, b->end) || span < 0) {
		unmeasured(g, b, now);
		return;
	}
	span -= launch_gap(b, span);
	if (slack > span / 2)
		g->host_bound_ns = now;
	busy = vgpu_streams_beside(g, b) ? not_covered(l->context, b, span, now) : span;
	if (b->beside < g->beside)
		b->beside = g->beside;
	charge = vgpu_batch_charge(g, b, span, busy, slack, (double)held, now);
	/* The gate's holds of this lane do not count: the batch may have waited for them. */
	if (b->past && charge > b->est_ns + held)
		vgpu_gate_past(g, charge - b->est_ns - held, now);
	settle(g, b, charge, (uint64_t)busy);
}

static void read_gaps(struct gate *g, uint64_t now)
{
	const struct vgpu_grant_card *c = &vgpu_state.grant->card[g->card];
	double idle = LOAD(&c->gaps_idle_ppm) / 1e6;

	g->gaps_measured = vgpu_only_budget(g) && now < LOAD(&c->gaps_until_ns);
	g->gaps_idle = !g->gaps_measured ? 0 : idle < 1 ? idle : 1;
}

void vgpu_batch_reap(struct gate *g, uint64_t now)
{
	g->reaped_ns = now;
	read_gaps(g, now);
	if (vgpu_several_lanes(g))
		g->several_ns = now;
	vgpu_gate_beside(g, now);
	for (unsigned i = 0; i < g->lanes; i++) {
		struct lane *l = &g->lane[i];

		while (l->closed && !l->context->ends) {
			struct vgpu_stream_batch *b = &l->ring[l->first];
			CUresult r =
				b->unmeasured ? CUDA_ERROR_INVALID_VALUE : vgpu_event_query(b->end);

			if (r == CUDA_ERROR_NOT_READY)
				break;
			if (r == CUDA_SUCCESS)
				l->passed_entries = b->entries;
			if (r == CUDA_SUCCESS)
				account(g, l, b, now);
			else
				unmeasured(g, b, now);
			vgpu_gate_progress(g, now);
			l->first = (l->first + 1) % RING;
			l->closed--;
		}
	}
}

void vgpu_lane_drop(struct gate *g, struct lane *l)
{
	struct vgpu_stream_batch *oldest = &l->ring[l->first];
	uint64_t unseen = 0;

	if (l->closed || (l->open && oldest->launches))
		unseen = vgpu_batch_unseen(g, oldest, vgpu_now());
	for (unsigned i = l->closed + (l->open ? 1u : 0u); i-- > 0;) {
		struct vgpu_stream_batch *b = &l->ring[(l->first + i) % RING];
		uint64_t most = b->est_ns + b->more_ns;
		uint64_t charge = i || unseen < most ? most : unseen;

		settle(g, b, charge, charge);
		unseen -= unseen < charge ? unseen : charge;
		b->entered = LOAD(&b->left);
	}
	l->closed = 0;
	l->open = false;
	l->stream = NULL;
}
