/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charge.c - see charge.h. A batch is charged its measured time, of which three things do not count:
 * time that another stream or process of the job has paid for, the slices of neighbors, and the time
 * that the host took for the first launch (docs/adr/0002).
 */
#include "charge.h"
#include "../atomic.h"
#include "beside.h"
#include "own_time.h"

/* Streams: so much time of batches is remembered. */
#define KNOWN_NS 100e6
/* Another process may have read the clock later than this process, by at most this time. A value that
 * is further ahead comes from another clock, and is ignored. */
#define AHEAD_NS 1000000000u
/* When the oldest work was launched whose time is not charged yet. */
static uint64_t oldest_work(const struct gate *g, uint64_t now)
{
	uint64_t oldest = g->queues_since_ns ? g->queues_since_ns : now;

	for (unsigned i = 0; i < g->lanes; i++) {
		const struct lane *l = &g->lane[i];

		if ((l->closed || l->open) && l->ring[l->first].asked_ns < oldest)
			oldest = l->ring[l->first].asked_ns;
	}
	return oldest;
}

/* The sum of what is counted comes to the time in which any of the job had work, whether slices
 * of the others were in the time of this one or not. The time is not skipped in which another
 * process has work that may have begun before. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now)
{
	uint64_t *to = &vgpu_state.cache.header->counted_ns[g->card];
	uint64_t old = LOAD(to), from, counted, oldest;

	oldest = g->procs ? 0 : oldest_work(g, now);
	do {
		from = old > oldest && old < now + AHEAD_NS ? old : oldest;
		from = from < now ? from : now;
		counted = ns < (double)(now - from) ? (uint64_t)ns : now - from;
	} while (!CAS(to, &old, from + counted));
	return (double)counted;
}

void vgpu_gate_begin(struct gate *g, uint64_t now)
{
	uint64_t *to = &vgpu_state.cache.header->counted_ns[g->card], old = LOAD(to);

	vgpu_gate_progress(g, now);
	if (oldest_work(g, now) < now)
		return;
	while (old < now && !CAS(to, &old, now))
		;
}

/* Work of other jobs may have run at the same time. The measured time is then only an upper limit of
 * the cost. At times gresd shuts the neighbors' gates for a moment, so that a job can learn its costs. */
static bool in_company(const struct gate *g, const struct vgpu_stream_batch *b)
{
	return g->concurrent && (g->schedule.others || g->others_at_ns > b->opened_ns);
}

/* The fraction of a batch's time that is its own, and does not belong to parallel streams. The own
 * times of the streams add up to the time that the streams cover together. */
static double part_of_streams(struct gate *g, const struct vgpu_stream_batch *b, double span,
			      double busy)
{
	double part;

	if (!vgpu_streams_beside(g, b))
		return 1;
	g->spans_ns += span;
	g->covered_ns += busy;
	part = g->spans_ns > 0 ? g->covered_ns / g->spans_ns : 1;
	if (g->spans_ns > KNOWN_NS) {
		g->spans_ns /= 2;
		g->covered_ns /= 2;
	}
	return part;
}

/* The launches took at most the batch's own time. That time may include slices of other contexts of
 * the job. A kernel can spin until a launch of another stream comes, so it takes as long as that
 * launch is throttled. This time is not learned: it would throttle the next launch for longer. */
static void learn(struct gate *g, const struct vgpu_stream_batch *b, double span, double busy,
		  double slack, double held, double part)
{
	double idle = slack * (!g->gaps_measured || g->gaps_idle > 0 ? g->gaps_idle : 1),
	       sure = span > held ? span - held : 0, least = sure > idle ? sure - idle : 0,
	       most = span * part_of_streams(g, b, span, busy);
	double own = span > 0 ? part * most / span : part;

	/* The host may have lost its processor while it recorded the events. */
	if (b->launches == 1 && !b->solid)
		slack += (double)(b->recorded_ns - b->asked_ns);
	if (part >= 1 && !b->beside && b->nfuncs == 1 && !b->rest_ns && b->launches)
		vgpu_cost_took(b->func[0].cost, b->launches,
			       sure > slack ? (sure - slack) * own : 0);
	vgpu_costs_learn(b->func, b->nfuncs, (double)b->rest_ns, least * own / (1 + b->beside),
			 most);
}

static bool varies(const struct vgpu_stream_batch *b)
{
	for (unsigned i = 0; i < b->nfuncs; i++)
		if (b->func[i].cost->varies)
			return true;
	return b->rest_ns != 0;
}

/* The idle time in a batch's gaps. gresd measures the idle part of all gaps. Before its first value, the work
 * in gaps is the estimates: these launches took so long when they were measured alone. */
static double idle_of(struct gate *g, const struct vgpu_stream_batch *b, double est, double slack,
		      double span, double counted)
{
	struct vgpu_demand *sum = &vgpu_state.cache.header->demand[g->card];
	double gap = slack < span ? slack : span, idle = counted > est ? counted - est : 0;

	if (!g->gaps_measured || span <= 0)
		return 0;
	gap *= counted / span;
	if (g->gaps_idle > 0)
		idle = gap * g->gaps_idle;
	else if (varies(b))
		idle = 0;
	idle = idle < gap ? idle : gap;
	ADD(&sum->gaps_ns, (uint64_t)gap);
	ADD(&sum->idle_ns, (uint64_t)idle);
	return idle;
}

uint64_t vgpu_batch_charge(struct gate *g, const struct vgpu_stream_batch *b, double span,
			   double busy, double slack, double held, uint64_t now)
{
	double est = vgpu_costs_sum(b->func, b->nfuncs, (double)b->rest_ns);
	double part = vgpu_own_part(g, b->own_ns, b->opened_ns, now);
	double counted = vgpu_gate_count(g, busy, now);

	if (in_company(g, b))
		return (uint64_t)(b->alone || est > span ? span : est);
	learn(g, b, span, busy, slack, held, part);
	if (part >= 1)
		return (uint64_t)(counted - idle_of(g, b, est, slack, span, counted));
	/* The neighbors may have been idle: then the batch took what its launches usually take. */
	est = est < counted ? est : counted;
	return (uint64_t)(est > counted * part ? est : counted * part);
}

uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	return (uint64_t)(vgpu_gate_count(g, (double)(now - b->asked_ns), now) *
			  vgpu_own_part(g, b->own_ns, b->asked_ns, now));
}

void vgpu_gate_charge(struct gate *g, uint64_t charge, uint64_t advance, uint64_t elapsed)
{
	struct vgpu_cache_header *h = vgpu_state.cache.header;

	ADD(&h->budget[g->card].balance_ns, (int64_t)advance - (int64_t)charge);
	ADD(&h->budget[g->card].charged_ns, charge);
	ADD(&vgpu_my(g->card)->gpu_ns, charge);
	ADD(&h->elapsed_ns[g->card], elapsed);
}

/* If other processes of the job had work at the same time, each pays its part. The parts add up to the
 * whole time. */
void vgpu_queues_charge(struct gate *g, uint64_t until)
{
	uint64_t since = g->queues_since_ns, elapsed = until > since ? until - since : 0;
	double part = vgpu_own_part(g, g->queues_own_ns, since, until), charge;

	vgpu_gate_beside(g, until);
	charge = vgpu_gate_count(g, (double)elapsed, until) * part;
	g->queues_since_ns = until;
	g->queues_own_ns = vgpu_gate_own(g, until);
	/* A gate without a budget takes nothing from the balance. */
	vgpu_gate_charge(g, (uint64_t)charge,
			 g->schedule.gate & VGPU_GATE_BUDGET ? 0 : (uint64_t)charge, elapsed);
}
