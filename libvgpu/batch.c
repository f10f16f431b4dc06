/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - see limiter.h. What launched work cost the card, by event pairs. */
#ifdef VGPU_PRELOAD
#include <string.h>

#include "limiter.h"

/* Elapsed times are float milliseconds: 1 us of resolution at ten seconds. */
#define ANCHOR_NS 5000000000u
/* With other jobs on the card a batch whose time is this far above its
 * estimate was interrupted by their slices, and teaches nothing. */
#define INTERRUPTED 1.5
#define FIRST_GAP_NS 10000
/* Whose slices fell into which batch evens out over many: enough of them that chance
 * does not count. */
#define BESIDE_NS 100e6
/* So many in a row are no interruptions. */
#define REJECTED_MAX 8

static CUevent event(CUevent *slot)
{
	if (!*slot && vgpu_real.cuEventCreate(slot, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		*slot = NULL;
	return *slot;
}

static bool record(CUevent *slot, CUstream stream)
{
	return event(slot) && vgpu_real.cuEventRecord(*slot, stream) == CUDA_SUCCESS;
}

static bool between(double *ns, CUevent from, CUevent to)
{
	float ms;

	if (vgpu_real.cuEventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
		return false;
	*ns = (double)ms * 1e6;
	return true;
}

struct lane *vgpu_lane_of(struct gate *g, CUcontext ctx, CUstream stream)
{
	struct gate_context *c = NULL;
	struct lane *spare = NULL;

	for (int i = 0; i < CONTEXTS && !c; i++)
		if (g->context[i].ctx == ctx)
			c = &g->context[i];
	for (int i = 0; i < CONTEXTS && !c; i++) {
		if (!g->context[i].ctx) {
			c = &g->context[i];
			*c = (struct gate_context){.ctx = ctx};
		}
	}
	if (!c)
		return NULL;
	for (int i = 0; i < LANES; i++) {
		struct lane *l = &g->lane[i];

		if (l->context == c && l->stream == stream)
			return l;
		/* A quiet lane may change its stream, but not its context: its
		 * events belong to that. */
		if (!l->open && !l->closed && (!l->context || l->context == c) &&
		    (!spare || l->context == c))
			spare = l;
	}
	if (!spare)
		return NULL;
	spare->context = c;
	spare->stream = stream;
	return spare;
}

/* On an idle card the start event is passed at once and the first kernel comes
 * when the host has launched it: that time is no work. The host may also lose
 * its processor between the launch and its look at the clock, so a gap counts
 * only as far as gaps usually are; beyond that it may be work: *maybe. */
static double launch_gap(struct gate *g, const struct vgpu_stream_batch *b, double span,
			 double *maybe)
{
	double gap = (double)(b->first_ns - b->opened_ns), sure;

	*maybe = 0;
	if (b->tight || b->first_ns < b->opened_ns)
		return 0;
	if (g->usual_gap_ns == 0)
		g->usual_gap_ns = FIRST_GAP_NS;
	g->usual_gap_ns *= gap > g->usual_gap_ns ? 1.05 : 0.95; /* follows the median */
	sure = gap > 1.3 * g->usual_gap_ns ? 1.3 * g->usual_gap_ns : gap;
	if (sure > span / 2)
		sure = span / 2;
	if (gap > sure)
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
	if (before->unmeasured || vgpu_real.cuEventQuery(before->end) != CUDA_ERROR_NOT_READY)
		return NULL;
	return before;
}

struct vgpu_stream_batch *vgpu_batch_open(const struct gate *g, struct lane *l, bool learns,
					  uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING], *before;
	CUevent own_start, end;

	if (l->open && !learns && !b->learns)
		return b;
	if (l->open) {
		vgpu_batch_close(l);
		if (l->open)
			return b; /* another thread is in it */
		b = &l->ring[(l->first + l->closed) % RING];
	}
	/* One entry stays unused: its end may be the start of the oldest. */
	if (l->closed >= RING - 2)
		return NULL;
	own_start = b->own_start;
	end = b->end;
	*b = (struct vgpu_stream_batch){.own_start = own_start,
					.end = end,
					.opened_ns = now,
					.beside = vgpu_gate_beside(g),
					.learns = learns};
	before = running_before(l);
	if (before) {
		b->start = before->end;
		b->tight = true;
	} else if (record(&b->own_start, l->stream)) {
		b->start = b->own_start;
		b->opened_ns = vgpu_now();
	} else {
		b->unmeasured = true;
	}
	b->own_ns = vgpu_gate_own(g, b->opened_ns);
	l->open = true;
	return b;
}

void vgpu_batch_close(struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];

	if (!l->open || __atomic_load_n(&b->pending, __ATOMIC_ACQUIRE))
		return;
	if (b->launches == 0) {
		l->open = false;
		return;
	}
	b->solid = b->tight && running_before(l);
	if (b->launches != b->ticked)
		b->last_ns = vgpu_now();
	if (!b->unmeasured && !record(&b->end, l->stream))
		b->unmeasured = true;
	l->open = false;
	l->closed++;
}

/* Moves the time line's zero before float milliseconds get coarse. */
static void anchor(struct gate_context *c, struct lane *l, uint64_t now)
{
	double moved;

	if (!c->anchored) {
		if (!record(&c->anchor, l->stream))
			return;
		c->anchored = true;
		c->anchor_host_ns = now;
		c->covered_ns = 0;
	} else if (c->next_recorded) {
		if (vgpu_real.cuEventQuery(c->next_anchor) != CUDA_SUCCESS)
			return;
		if (between(&moved, c->anchor, c->next_anchor)) {
			CUevent old = c->anchor;

			c->anchor = c->next_anchor;
			c->next_anchor = old;
			c->covered_ns -= moved;
			c->anchor_host_ns = now;
		}
		c->next_recorded = false;
	} else if (now - c->anchor_host_ns > ANCHOR_NS && record(&c->next_anchor, l->stream)) {
		c->next_recorded = true;
	}
}

/* Time of this batch that no other stream's batch has been charged for. */
static double not_covered(struct gate_context *c, struct lane *l, const struct vgpu_stream_batch *b,
			  double span, uint64_t now)
{
	double end, begin;

	anchor(c, l, now);
	if (!c->anchored || !between(&end, c->anchor, b->end))
		return span;
	begin = end - span;
	if (begin < c->covered_ns)
		begin = c->covered_ns;
	if (end > c->covered_ns)
		c->covered_ns = end;
	return end > begin ? end - begin : 0;
}

/* Time in which the card can have waited for the host inside the batch. */
static double slack_of(const struct vgpu_stream_batch *b, double late)
{
	if (b->solid)
		return 0;
	return late + (b->last_ns > b->first_ns ? (double)(b->last_ns - b->first_ns) : 0);
}

/* What part of the batch's time was the job's own. Other jobs come and go while it is on
 * its way: what holds when it is seen to have ended does not say. */
static double own_part(const struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	uint64_t own = vgpu_gate_own(g, now) - b->own_ns;

	if (now <= b->opened_ns || own >= now - b->opened_ns)
		return 1;
	return (double)own / (double)(now - b->opened_ns);
}

/* est is what the batch was learned to cost. Whole says that nobody else was on the card. */
static void learn(struct vgpu_stream_batch *b, double est, double span, double slack, bool whole)
{
	double least = span > slack ? span - slack : 0;

	if (!whole) {
		/* Slices of others may be in it. */
		bool exact = b->solid || slack < 0.5 * span;

		least = exact ? span : 0;
		if (!b->learns && span > INTERRUPTED * est) {
			/* Now and then that is chance; always, and the work has
			 * become longer. Should it have been chance after all, the
			 * next batch that runs through corrects it at once. */
			if (++b->func[0].cost->rejected < REJECTED_MAX)
				return;
			least = span;
		}
		b->func[0].cost->rejected = 0;
	}
	vgpu_costs_learn(b->func, b->nfuncs, (double)b->rest_ns, least, span);
}

/* Beside others elapsed time holds their slices: known work that was interrupted costs
 * what it was learned to cost. */
static double known_or(double busy, double est)
{
	return busy < INTERRUPTED * est ? busy : est;
}

/* Processes of one job on the card: each had it for about its part of the time. That is
 * no measure of one batch, but over many the charges come to it, whatever was learned. */
static double charge_beside(struct gate *g, const struct vgpu_stream_batch *b, double busy,
			    double est)
{
	double part = busy / (1 + b->beside);
	double charge = b->learns ? part : known_or(busy, est);

	g->beside_ns += part - charge;
	if (g->beside_ns < -BESIDE_NS)
		g->beside_ns = -BESIDE_NS;
	if (g->beside_ns > BESIDE_NS) {
		charge += g->beside_ns - BESIDE_NS;
		g->beside_ns = BESIDE_NS;
	}
	return charge;
}

static uint64_t charge_of(struct gate *g, const struct vgpu_stream_batch *b, double est,
			  double busy, double slack, double part)
{
	double slice = g->schedule.slice_us * 1e3, at_least = busy > slack ? busy - slack : 0;

	/* Work that fits a slice, and longer work. */
	if (part < 1 && slice > 0)
		return (uint64_t)(est < slice / 2 && !b->learns ? known_or(busy, est)
								: busy * part);
	if (b->beside)
		return (uint64_t)charge_beside(g, b, busy, est);
	if (b->learns)
		return (uint64_t)at_least;
	/* Between short kernels the card may have waited for the host: then the time is
	 * too long. Where it cannot have waited, it is right. */
	if (!b->solid && est / b->launches < SHORT_NS && busy > est)
		return (uint64_t)(est > at_least ? est : at_least);
	return (uint64_t)busy;
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
	g->inflight_ns -= g->inflight_ns < b->est_ns ? g->inflight_ns : b->est_ns;
	__atomic_store_n(&mine->inflight_ns, g->inflight_ns, __ATOMIC_SEQ_CST);
}

static bool several_lanes(const struct gate *g)
{
	unsigned n = 0;

	for (int i = 0; i < LANES; i++)
		n += g->lane[i].closed != 0 || g->lane[i].open;
	return n > 1;
}

/* A batch whose end has come; several: other streams had work too. */
static void account(struct gate *g, struct lane *l, struct vgpu_stream_batch *b, bool several,
		    uint64_t now)
{
	double est = vgpu_costs_sum(b->func, b->nfuncs, (double)b->rest_ns);
	double span, busy, late, slack, part = own_part(g, b, now);
	uint32_t beside = vgpu_gate_beside(g);

	if (!between(&span, b->start, b->end)) {
		settle(g, b, b->est_ns, b->est_ns);
		return;
	}
	span -= launch_gap(g, b, span, &late);
	slack = slack_of(b, late);
	busy = several ? not_covered(l->context, l, b, span, now) : span;
	if (b->beside < beside)
		b->beside = beside;
	settle(g, b, charge_of(g, b, est, busy, slack, part), (uint64_t)busy);
	learn(b, est, span, slack, part >= 1 && !b->beside && !g->schedule.others);
}

void vgpu_batch_reap(struct gate *g, uint64_t now)
{
	bool several = several_lanes(g);

	for (int i = 0; i < LANES; i++) {
		struct lane *l = &g->lane[i];

		while (l->closed) {
			struct vgpu_stream_batch *b = &l->ring[l->first];
			CUresult r = b->unmeasured ? CUDA_ERROR_INVALID_VALUE
						   : vgpu_real.cuEventQuery(b->end);

			if (r == CUDA_ERROR_NOT_READY)
				break;
			if (r == CUDA_SUCCESS)
				account(g, l, b, several, now);
			else
				settle(g, b, b->est_ns, b->est_ns);
			g->progress_ns = now;
			l->first = (l->first + 1) % RING;
			l->closed--;
		}
	}
}

void vgpu_lane_drop(struct gate *g, struct lane *l)
{
	for (unsigned i = 0; i < l->closed + (l->open ? 1u : 0u); i++) {
		struct vgpu_stream_batch *b = &l->ring[(l->first + i) % RING];

		settle(g, b, b->est_ns, b->est_ns);
		b->pending = 0;
	}
	l->closed = 0;
	l->open = false;
	l->stream = NULL;
}
#endif
