/* SPDX-License-Identifier: Apache-2.0 */
/* reap.c - see reap.h. What completed batches cost the card. */
#include "reap.h"
#include "apart.h"
#include "beside.h"
#include "charge.h"
#include "event.h"
#include "lane.h"
#include "own_time.h"
#include "streams.h"

/* Taken for what a first launch takes the host, until that is measured. */
#define FIRST_GAP_NS 10000

/* On an idle card the start event is passed at once and the first kernel comes
 * when the host has launched it: that time is no work. The host may also lose
 * its processor between the launch and its look at the clock, so a gap counts
 * only as far as gaps usually are; beyond that it may be work: *maybe. Where the
 * driver waits in the launch, it is. */
static double launch_gap(struct gate *g, const struct vgpu_stream_batch *b, double span,
			 double *maybe)
{
	double gap = (double)(b->first_ns - b->opened_ns), usual, sure;

	*maybe = 0;
	if (b->tight || b->first_ns < b->opened_ns)
		return 0;
	if (g->usual_gap_ns == 0)
		g->usual_gap_ns = FIRST_GAP_NS;
	if (!b->waits)
		g->usual_gap_ns *= gap > g->usual_gap_ns ? 1.05 : 0.95; /* follows the median */
	usual = b->waits ? FIRST_GAP_NS : g->usual_gap_ns;
	sure = gap > 1.3 * usual ? 1.3 * usual : gap;
	if (sure > span / 2)
		sure = span / 2;
	if (gap > sure && !b->waits)
		*maybe = gap < span ? gap - sure : span - sure;
	return sure;
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
static double slack_of(const struct vgpu_stream_batch *b, double late)
{
	if (b->solid || b->waits)
		return 0;
	if (b->tight && b->first_ns > b->opened_ns)
		late += (double)(b->first_ns - b->opened_ns);
	return late + (b->last_ns > b->first_ns ? (double)(b->last_ns - b->first_ns) : 0);
}

/* The same while it recorded the events: the host may have lost its processor then. */
static double recording(const struct vgpu_stream_batch *b)
{
	double start = b->start != b->own_start ? 0 : (double)(b->opened_ns - b->asked_ns);

	return start + (b->recorded_ns > b->last_ns ? (double)(b->recorded_ns - b->last_ns) : 0);
}

static void settle(struct gate *g, const struct vgpu_stream_batch *b, uint64_t charge,
		   uint64_t elapsed)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[g->card];
	struct vgpu_slot_card *mine = vgpu_my(g->card);

	__atomic_add_fetch(&budget->balance_ns, (int64_t)b->est_ns - (int64_t)charge,
			   __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&budget->charged_ns, charge, __ATOMIC_RELAXED);
	__atomic_add_fetch(&mine->gpu_ns, charge, __ATOMIC_RELAXED);
	__atomic_add_fetch(&vgpu_state.cache.header->elapsed_ns[g->card], elapsed,
			   __ATOMIC_RELAXED);
	g->charged_ns += charge;
	g->inflight_ns -= g->inflight_ns < b->est_ns ? g->inflight_ns : b->est_ns;
	g->more_ns -= g->more_ns < b->more_ns ? g->more_ns : b->more_ns;
	__atomic_store_n(&mine->inflight_ns, g->inflight_ns, __ATOMIC_SEQ_CST);
}

/* Trusted work is proven later. */
static void unmeasured(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	uint64_t ns = b->est_ns + (b->trusted ? 0 : b->more_ns);

	vgpu_gate_count(g, (double)ns, now);
	settle(g, b, ns, ns);
}

/* The batch's end is the lane's proof from now on: its event is not recorded again before
 * there is another. One that was marked was recorded nobody knows when. */
static void proven(struct gate *g, struct lane *l, struct vgpu_stream_batch *b)
{
	CUevent before = l->proof.end;

	l->proof = (struct proof){.end = b->end,
				  .host_ns = b->marked ? 0 : b->last_ns,
				  .since_ns = b->opened_ns,
				  .own_ns = b->own_ns,
				  .charged_ns = g->charged_ns};
	b->end = before;
}

/* A batch whose end has come. gate.beside and gate.several_ns are of now. */
static void account(struct gate *g, struct lane *l, struct vgpu_stream_batch *b, uint64_t now)
{
	double span, busy, late, slack;
	uint64_t charge, beyond, held;

	if (!vgpu_event_between(&span, b->start, b->end) || span < 0) {
		unmeasured(g, b, now);
		return;
	}
	beyond = vgpu_batch_beyond(g, l, b, now);
	if (!b->launches) {
		settle(g, b, beyond, beyond);
		proven(g, l, b);
		return;
	}
	span -= launch_gap(g, b, span, &late);
	slack = b->foreign ? span : slack_of(b, late);
	if (!b->single)
		g->waited += ((slack > 0.5 * span ? 1.0f : 0.0f) - g->waited) / 16;
	if ((b->single || vgpu_host_bound(g)) && !b->solid)
		slack += recording(b);
	busy = g->several_ns >= b->opened_ns && !b->foreign ? not_covered(l->context, b, span, now)
							    : span;
	if (b->beside < g->beside)
		b->beside = g->beside;
	held = l->held_ns - b->held_ns;
	charge = vgpu_batch_charge(g, b, span, busy, slack, (double)held, now);
	/* The gate's holds of this lane do not count: the batch may have waited for them. */
	if (b->past && charge > b->est_ns + held)
		vgpu_gate_past(g, charge - b->est_ns - held, now);
	settle(g, b, charge + beyond, (uint64_t)busy + beyond);
	proven(g, l, b);
}

/* A launch without a lane pays all of its time that no other stream of its context has been charged
 * for: what others did in it is not known. Where only its end is known, that is the host's. */
static void account_apart(struct gate *g, struct vgpu_apart *a, uint64_t now)
{
	const struct vgpu_stream_batch *b = &a->batch;
	struct gate_context *c = vgpu_context_find(g, a->ctx);
	uint64_t charge;
	double span;

	vgpu_gate_progress(g, now);
	if (!b->launches) {
		settle(g, b, 0, 0);
	} else if (a->unmeasured) {
		unmeasured(g, b, now);
	} else {
		if (b->start && vgpu_event_between(&span, b->start, b->end) && span >= 0)
			charge = (uint64_t)((c ? not_covered(c, b, span, now) : span) *
					    vgpu_own_part(g, b->own_ns, b->asked_ns, now));
		else
			charge = vgpu_batch_unseen(g, b, now);
		if (b->past && charge > b->est_ns)
			vgpu_gate_past(g, charge - b->est_ns, now);
		settle(g, b, charge, charge);
	}
	vgpu_apart_free(a);
}

void vgpu_apart_drop(struct gate *g, CUcontext ctx)
{
	struct vgpu_apart *a;

	while ((a = vgpu_apart_gone(g, ctx))) {
		uint64_t most = a->batch.est_ns + a->batch.more_ns;
		uint64_t unseen = vgpu_batch_unseen(g, &a->batch, vgpu_now());

		settle(g, &a->batch, unseen > most ? unseen : most, unseen);
		vgpu_apart_free(a);
	}
}

void vgpu_batch_reap(struct gate *g, uint64_t now)
{
	struct vgpu_apart *apart;

	g->reaped_ns = now;
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
				account(g, l, b, now);
			else
				unmeasured(g, b, now);
			l->proof.unproven |= b->trusted;
			vgpu_gate_progress(g, now);
			l->first = (l->first + 1) % RING;
			l->closed--;
		}
	}
	vgpu_streams_reaped(g);
	while (unlikely(g->apart != NULL) && (apart = vgpu_apart_completed(g)))
		account_apart(g, apart, now);
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
		b->entered = __atomic_load_n(&b->left, __ATOMIC_RELAXED);
	}
	l->closed = 0;
	l->open = false;
	l->stream = NULL;
	l->proof.host_ns = 0;
	l->proof.unproven = false;
}
