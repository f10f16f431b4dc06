/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - see limiter.h. What launched work cost the card, by event pairs. */
#ifdef VGPU_PRELOAD
#include "limiter.h"

/* Elapsed times are float milliseconds: 1 us of resolution at ten seconds. */
#define ANCHOR_NS 5000000000u
#define FIRST_GAP_NS 10000

__thread char vgpu_this_thread;

static struct gate_context *context_of(struct gate *g, CUcontext ctx)
{
	struct gate_context *c = vgpu_context_find(g, ctx);

	for (int i = 0; !c && i < CONTEXTS; i++) {
		if (g->context[i].ctx)
			continue;
		c = &g->context[i];
		*c = (struct gate_context){.ctx = ctx, .gate = g};
	}
	return c;
}

/* Its events are of a context, and no use to another one. */
static void forget_events(struct lane *l)
{
	for (unsigned i = 0; i < RING; i++) {
		if (l->ring[i].own_start)
			vgpu_real.cuEventDestroy_v2(l->ring[i].own_start);
		if (l->ring[i].end)
			vgpu_real.cuEventDestroy_v2(l->ring[i].end);
		l->ring[i].own_start = l->ring[i].end = NULL;
	}
	if (l->proof.end)
		vgpu_real.cuEventDestroy_v2(l->proof.end);
	l->proof.end = NULL;
}

struct lane *vgpu_lane_of(struct gate *g, CUcontext ctx, CUstream stream)
{
	const void *thread = vgpu_stream_thread(stream);
	struct gate_context *c = context_of(g, ctx);
	struct lane *spare = NULL;

	if (!c || c->ends)
		return NULL;
	for (unsigned i = 0; i < LANES; i++) {
		struct lane *l = &g->lane[i];

		if (l->context == c && l->stream == stream && l->thread == thread)
			return l;
		if (l->open || l->closed || l->busy || l->proof.unproven ||
		    (l->context && l->context->ends))
			continue;
		/* The first of: one of this context, a new one, one of another context. */
		if (!spare || (spare->context != c && l->context == c) ||
		    (spare->context && spare->context != c && !l->context))
			spare = l;
	}
	if (!spare)
		return NULL;
	if (spare->context && spare->context != c && vgpu_real.cuEventDestroy_v2)
		forget_events(spare);
	spare->context = c;
	spare->stream = stream;
	spare->thread = thread;
	spare->proof.host_ns = 0;
	spare->proof.unproven = false;
	__atomic_store_n(&spare->marks, false, __ATOMIC_RELAXED);
	if (g->lanes < spare - g->lane + 1)
		g->lanes = (unsigned)(spare - g->lane + 1);
	return spare;
}

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

static bool several_lanes(const struct gate *g)
{
	unsigned n = 0;

	for (unsigned i = 0; i < g->lanes; i++)
		n += g->lane[i].closed != 0 || g->lane[i].open;
	return n > 1;
}

static bool record_anchor(CUevent *slot, struct lane *l)
{
	bool pushed, ok = vgpu_event_enter(l, &pushed) && vgpu_event_record(l, slot);

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

struct vgpu_stream_batch *vgpu_batch_open(struct gate *g, struct lane *l,
					  const struct vgpu_cost *cost, uint32_t samples,
					  const struct vgpu_launch *launch, uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING], *before;
	uint64_t est_ns = launch->est_ns;
	bool learns = !samples, waits = launch->waits, known = vgpu_measure_known(samples, est_ns);
	bool single = !learns && vgpu_measure_alone(g, l, cost, est_ns, now);
	CUevent own_start, end;

	if (l->open && !learns && !waits && !b->learns && !b->waits && !b->single &&
	    (b->trusted ? known : !single))
		return b;
	if (l->open) {
		vgpu_batch_close(l);
		if (l->open)
			return b; /* another thread is in it */
		b = &l->ring[(l->first + l->closed) % RING];
	}
	/* One entry stays unused: its end may be the start of the oldest. With no other left, the
	 * newest batch goes on: its end is recorded once more. */
	if (l->closed >= RING - 2)
		vgpu_batch_reap(g, now);
	if (l->closed >= RING - 2) {
		b = &l->ring[(l->first + --l->closed) % RING];
		b->single = b->learns = b->waits = false;
		b->foreign |= b->last_ns <= l->foreign_ns;
		l->open = true;
		return b;
	}
	b = &l->ring[(l->first + l->closed) % RING];
	own_start = b->own_start;
	end = b->end;
	l->open = true; /* one of those with work, from now on */
	vgpu_gate_beside(g, now);
	*b = (struct vgpu_stream_batch){.own_start = own_start,
					.end = end,
					.asked_ns = now,
					.opened_ns = now,
					.beside = g->beside,
					.divided_ns = g->divided_ns,
					.held_ns = l->held_ns,
					.foreign_ns = l->foreign_ns,
					.single = single,
					.waits = waits,
					.learns = learns};
	vgpu_gate_count(g, 0, now); /* if nothing was on its way, there was no work up to here */
	if (!single && !waits && vgpu_measure_trust(g, l, known, b->beside, now)) {
		b->trusted = b->unmeasured = true;
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
	if (several_lanes(g)) {
		g->several_ns = b->opened_ns;
		place_anchor(l, now);
	}
	return b;
}

static bool can_record(const struct lane *l)
{
	return !l->thread || l->thread == &vgpu_this_thread;
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
		__atomic_store_n(&l->marks, true,
				 __ATOMIC_RELAXED); /* launches look without the lock */
		return b->marked == b->launches;
	}
	__atomic_store_n(&l->marks, false, __ATOMIC_RELAXED);
	ok = vgpu_event_enter(l, &pushed) && vgpu_event_record(l, &b->end);
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
	b->solid = b->tight && !b->foreign && running_before(l);
	if (b->launches != b->ticked && !b->trusted)
		b->last_ns = vgpu_now();
	if (!b->unmeasured && !record_end(l, b))
		b->unmeasured = true;
	if (!b->unmeasured)
		b->recorded_ns = vgpu_now();
	l->open = false;
	l->closed++;
}

void vgpu_batch_prove(const struct gate *g, struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];
	bool trusted = l->closed && l->ring[(l->first + l->closed - 1) % RING].trusted;
	uint64_t now;

	/* Whatever is launched next finds an entry: this one cannot go on. */
	if (l->open || l->busy || l->context->ends || l->closed >= RING - 3 ||
	    !(trusted || l->proof.unproven))
		return;
	now = vgpu_now();
	if (!l->stream) { /* destroyed */
		l->proof.unproven = false;
		return;
	}
	*b = (struct vgpu_stream_batch){.own_start = b->own_start,
					.end = b->end,
					.last_ns = now,
					.asked_ns = now,
					.own_ns = vgpu_gate_own(g, now),
					.foreign_ns = l->foreign_ns};
	if (!record_end(l, b)) {
		l->proof.unproven = false; /* nobody will tell */
		return;
	}
	b->start = b->end;
	b->opened_ns = vgpu_now();
	l->closed++;
}

void vgpu_batch_end(struct lane *l)
{
	if (can_record(l))
		vgpu_batch_close(l);
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
	__atomic_store_n(&mine->inflight_ns, g->inflight_ns, __ATOMIC_SEQ_CST);
}

static void by_estimate(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	vgpu_gate_count(g, (double)b->est_ns, now);
	settle(g, b, b->est_ns, b->est_ns);
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
	uint64_t charge, beyond;

	if (!vgpu_event_between(&span, b->start, b->end) || span < 0) {
		by_estimate(g, b, now);
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
	if (b->single && g->several_ns >= b->opened_ns)
		slack = span; /* others of this process may have run in it */
	busy = g->several_ns >= b->opened_ns && !b->foreign ? not_covered(l->context, b, span, now)
							    : span;
	if (b->beside < g->beside)
		b->beside = g->beside;
	charge = vgpu_batch_charge(g, b, span, busy, slack, (double)(l->held_ns - b->held_ns), now);
	settle(g, b, charge + beyond, (uint64_t)busy + beyond);
	proven(g, l, b);
}

void vgpu_batch_reap(struct gate *g, uint64_t now)
{
	g->reaped_ns = now;
	if (several_lanes(g))
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
				by_estimate(g, b, now);
			l->proof.unproven |= b->trusted;
			g->progress_ns = now;
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
		uint64_t charge = i || unseen < b->est_ns ? b->est_ns : unseen;

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

void vgpu_lane_end(struct gate *g, struct lane *l)
{
	if (!vgpu_events_barred()) {
		vgpu_batch_close(l);
		vgpu_batch_prove(g, l);
	}
	if (l->open)
		vgpu_lane_drop(g, l);
	l->stream = NULL;
}
#endif
