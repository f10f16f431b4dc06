/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charge.c - see charge.h. What a measured batch is charged, and what it teaches
 * (docs/adr/0002). Alone on the card that is the time that it took. Beside others
 * their slices are in that time.
 */
#include "charge.h"
#include "../atomic.h"
#include "beside.h"
#include "event.h"
#include "own_time.h"
#include "streams.h"

/* Beside others a batch whose time is this far above its estimate was interrupted by
 * their slices, and teaches nothing. */
#define INTERRUPTED 1.5
/* So many in a row are no interruptions: the work has become longer. */
#define REJECTED_MAX 8
/* So many are enough to charge it so, from the least of them on. */
#define REJECTED_CHARGED 4
/* Whose slices fell into which batch evens out over many: charges by estimates may be
 * behind the time that passed by so much, that chance does not count. */
#define SHORT_MOST_NS 100e6
/* And by this factor: with other jobs that time is known on the average only. */
#define BEHIND 0.7
/* The processes of a job end their batches in turn, so that one is charged before another. */
#define BEHIND_MOST_NS 20000000

/* What is no longer than this part of a slice runs through in one often enough for its cost
 * to be known; beside other processes of the job its time says less than that even where it
 * just fits. With half of a slice, eight jobs of 12 % had 10 to 11 of kernels of 1 ms in
 * slices of 2. */
#define FITS 0.75
#define FITS_BESIDE 1.0

/* When the oldest work was launched whose time is not charged yet. */
static uint64_t oldest_work(const struct gate *g, uint64_t now)
{
	uint64_t oldest = g->queues_since_ns ? g->queues_since_ns : now;

	for (unsigned i = 0; i < g->lanes; i++) {
		const struct lane *l = &g->lane[i];
		uint64_t began = l->proof.unproven      ? l->proof.since_ns
				 : l->closed || l->open ? l->ring[l->first].asked_ns
							: now;

		oldest = began < oldest ? began : oldest;
	}
	return oldest;
}

/* Another process's look at the clock may be later than this one's by as much. Whatever is
 * further ahead is of another clock, and not believed. */
#define AHEAD_NS 1000000000u

/* The sum of what is counted comes to the time in which any of the job had work, whether slices
 * of the others were in the time of this one or not. The time is not skipped in which another
 * process has work that may have begun before. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now)
{
	uint64_t *to = &vgpu_state.cache.header->counted_ns[g->card];
	uint64_t old = __atomic_load_n(to, __ATOMIC_RELAXED), from, counted, oldest;

	oldest = g->procs ? 0 : oldest_work(g, now);
	do {
		from = old > oldest && old < now + AHEAD_NS ? old : oldest;
		from = from < now ? from : now;
		counted = ns < (double)(now - from) ? (uint64_t)ns : now - from;
	} while (!__atomic_compare_exchange_n(to, &old, from + counted, false, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
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

/* True: the batch was interrupted, and says nothing of what its work costs. */
static bool interrupted(struct vgpu_stream_batch *b, double est, double span)
{
	struct vgpu_cost *c = b->func[0].cost;
	float longer = (float)(span / est);

	if (b->learns || span <= INTERRUPTED * est) {
		c->rejected = 0;
		return false;
	}
	/* Now and then that is chance; always, and the work has become longer: then the
	 * old estimate has no say. Should it have been chance after all, the next batch
	 * that runs through corrects it. */
	if (c->rejected++ == 0 || longer < c->longer)
		c->longer = longer;
	if (c->rejected >= REJECTED_MAX) {
		vgpu_costs_scale(b->func, b->nfuncs, (double)c->longer);
		c->rejected = 0;
	}
	return true;
}

/* What launches are taken for of which nothing is known stays so, within what was measured: where
 * the host lost its processor meanwhile, their time may be next to nothing, or all of that. */
static double taken_for(const struct vgpu_stream_batch *b, double least, double most)
{
	double taken = (double)b->est_ns;

	return taken < least ? least : taken > most ? most : taken;
}

/* A launch that was measured alone and says only how long it took at most teaches nothing: of
 * launches that differ, their key would be taken for the shortest. Only for brief ones its bounds
 * are close to each other, unless others ran in it. */
static bool says_little(const struct gate *g, const struct vgpu_stream_batch *b, double span,
			double slack)
{
	return b->single && (vgpu_streams_beside(g, b) || (slack >= span && span > BRIEF_NS));
}

/* Took longer in company, or was not known before: whether its costs are right is seen when the job
 * is without company (vgpu_measure_suspect). */
static void suspect(const struct vgpu_stream_batch *b, double est, double span)
{
	for (uint32_t i = 0; i < b->nfuncs; i++) {
		b->func[i].cost->rejected |= b->learns || span > INTERRUPTED * est;
		b->func[i].cost->longer = 1;
	}
}

/* A launch by itself, without company. */
static void prove(struct vgpu_cost_part *part, double est, double least)
{
	if (__atomic_load_n(&part->cost->samples, __ATOMIC_RELAXED) && part->launches &&
	    least > INTERRUPTED * est)
		vgpu_costs_scale(part, 1, least / est);
	else
		part->cost->rejected = 0;
}

/* Whole says that nobody else was on the card. A kernel that spins until a launch of another
 * stream has come takes as long as that is held: were it learned, the next would be held
 * for longer. */
static void learn(const struct gate *g, struct vgpu_stream_batch *b, double est, double span,
		  double slack, double held, bool whole)
{
	double sure = b->learns ? span : span > held ? span - held : 0;
	double least = sure > slack ? sure - slack : 0;

	if (b->foreign)
		return;
	if (b->single) {
		if (whole && b->launches)
			vgpu_costs_alone(b->func[0].cost, least, span);
		return;
	}
	if (vgpu_streams_in_company(g, b)) {
		suspect(b, est, sure);
		least = 0;
	} else if (g->concurrent && b->learns) {
		prove(b->func, est, least);
	} else if (!whole) {
		if (interrupted(b, est, sure))
			return;
		/* Slices of others may be in it. */
		least = b->solid || slack < 0.5 * span ? sure : 0;
	}
	if (b->learns)
		least = taken_for(b, least, span);
	vgpu_costs_learn(b->func, b->nfuncs, (double)b->rest_ns, least, span);
}

/* Known work that was interrupted costs what it was learned to cost. One batch's own part
 * of the time that it took is no measure of it. */
static double known(const struct vgpu_stream_batch *b, double est, double busy)
{
	const struct vgpu_cost *c = b->func[0].cost;
	double charge = c->rejected >= REJECTED_CHARGED ? est * (double)c->longer : est;

	return busy > INTERRUPTED * est && charge < busy ? charge : busy;
}

/* But over many the charges come to that, whatever was learned. Returns what is missing. */
static double beside_jobs(struct gate *g, double own, double charge)
{
	double missing = g->short_ns + own - charge - SHORT_MOST_NS;

	g->short_ns += own - charge - (missing > 0 ? missing : 0);
	if (g->short_ns < -SHORT_MOST_NS)
		g->short_ns = -SHORT_MOST_NS;
	return missing > 0 ? missing : 0;
}

/* With neighbors, each process of a job pays its costs. Together the processes pay at least the time
 * with work of the job. Returns the missing part of that time. */
static double beside_own(const struct gate *g, double counted, double charge)
{
	int64_t *behind = &vgpu_state.cache.header->behind_ns[g->card];
	int64_t old = __atomic_load_n(behind, __ATOMIC_RELAXED), sum, kept;

	do {
		sum = old + (int64_t)(counted - charge);
		kept = sum > BEHIND_MOST_NS    ? BEHIND_MOST_NS
		       : sum < -BEHIND_MOST_NS ? -BEHIND_MOST_NS
					       : sum;
	} while (!__atomic_compare_exchange_n(behind, &old, kept, false, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return sum > kept ? (double)(sum - kept) : 0;
}

static double longer_than_slices(const struct gate *g, const struct vgpu_stream_batch *b,
				 double busy, double part)
{
	bool same = g->others_at_ns <= b->opened_ns; /* neighbours all the time */
	double sure = same ? g->schedule.least_ppm / 1e6 / (1 + b->beside) : 0;

	if (b->nfuncs != 1 || b->launches != 1)
		return busy * part;
	return vgpu_costs_long(b->func[0].cost, busy, part, sure);
}

/* As long as a key was not measured so often, what it takes at most is what it is charged. */
#define FEW_SAMPLES 4

static bool hardly_known(const struct vgpu_stream_batch *b)
{
	return b->nfuncs == 1 &&
	       __atomic_load_n(&b->func[0].cost->samples, __ATOMIC_RELAXED) < FEW_SAMPLES;
}

/* Others of the job had work meanwhile, also those that came and went unseen at both ends. */
#define UNDIVIDED 0.98

static double charge_of(struct gate *g, const struct vgpu_stream_batch *b, double est, double busy,
			double slack, double part, double of_job, double counted)
{
	double slice = g->schedule.slice_us * 1e3, at_least = busy > slack ? busy - slack : 0;
	double charge;

	if (b->foreign) { /* what else was in it, nobody knows */
		est = est > (double)b->est_ns ? est : (double)b->est_ns;
		est += (double)b->more_ns;
		return est < busy ? est : busy;
	}
	if (vgpu_streams_in_company(g, b))
		return b->learns || est > busy ? busy : est;
	if (part < 1 && slice > 0) {
		if (est < (b->beside ? FITS_BESIDE : FITS) * slice && !b->learns) {
			charge = known(b, est, busy);
			return charge + beside_jobs(g, BEHIND * busy * part * of_job, charge);
		}
		return longer_than_slices(g, b, busy, part * of_job);
	}
	/* Without neighbors, the time is exact for all processes together. */
	if (b->beside || of_job < UNDIVIDED) {
		if (vgpu_only_budget(g))
			return counted;
		charge = b->learns ? counted : known(b, est, busy);
		return charge + beside_own(g, counted, charge);
	}
	if (b->learns)
		return taken_for(b, at_least, busy);
	/* Between short kernels the card may have waited for the host: then the time is
	 * too long. Where it cannot have waited, it is right. One launch may be the longest of its
	 * key, and of a key that is hardly known any. */
	if (b->solid || est / b->launches >= SHORT_NS)
		return busy;
	if (b->launches == 1)
		est = hardly_known(b) ? busy : est + (double)b->more_ns;
	charge = est > at_least ? est : at_least;
	return charge < busy ? charge : busy;
}

/* The host may have lost its processor anywhere between its calls; of several launches slack says
 * where. */
static void note_longest(const struct vgpu_stream_batch *b, double busy, double slack, bool whole)
{
	double host = b->solid || b->launches != 1 ? slack
						   : slack + (double)(b->recorded_ns - b->asked_ns);

	if (!whole || b->foreign || b->nfuncs != 1 || b->rest_ns || !b->launches)
		return;
	if (busy > host)
		vgpu_cost_took(b->func[0].cost, b->launches, busy - host);
	vgpu_cost_compare(b->func[0].cost, b->launches, busy > host ? busy - host : 0);
}

uint64_t vgpu_batch_charge(struct gate *g, struct vgpu_stream_batch *b, double span, double busy,
			   double slack, double held, uint64_t now)
{
	double est = vgpu_costs_sum(b->func, b->nfuncs, (double)b->rest_ns);
	double part = vgpu_own_part(g, b->own_ns, b->opened_ns, now);
	double counted = vgpu_gate_count(g, busy, now);
	double of_job = vgpu_own_of_job(g, b->divided_ns, b->opened_ns, now);
	bool company = vgpu_streams_in_company(g, b),
	     whole = part >= 1 && !company && !g->schedule.others;
	double alone = span, unsure = slack, charge;

	/* The job's processes have their parts of the time evenly; in company these bound nothing. */
	if (g->concurrent && !company)
		alone = of_job * vgpu_streams_own(g, b, span, busy, held, &unsure);
	else
		whole &= !b->beside && of_job >= UNDIVIDED;

	note_longest(b, busy, slack, whole);
	/* Other streams may have run in it. */
	if (b->single && vgpu_streams_beside(g, b)) {
		unsure = span;
		slack = b->func[0].cost->varies ? slack : span;
	}

	/* What is known is charged by that, and only over many batches by its part of the time.
	 * Of the rest no more may be taken off than was surely that of others. */
	if (b->learns && busy > 0)
		of_job = counted / busy;
	charge = charge_of(g, b, est, busy, slack, part, of_job, counted);
	/* Of other jobs' slices there is beside_jobs(). What is not known costs the time that it took
	 * in company. */
	if (part >= 1)
		charge = vgpu_streams_charge(g, b, company && b->learns ? span : est, span, busy,
					     charge, company);
	if (!says_little(g, b, span, slack))
		learn(g, b, est, alone, unsure, held, whole);
	if (b->learns)
		charge += vgpu_costs_owed(b->func[0].cost);
	return (uint64_t)charge;
}

uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now)
{
	return (uint64_t)(vgpu_gate_count(g, (double)(now - b->asked_ns), now) *
			  vgpu_own_part(g, b->own_ns, b->asked_ns, now));
}

/* The clocks of host and card may differ by so much. */
#define DRIFT 1e-3
/* What the driver needs from a record or a launch to the card, at most. */
#define WAY_NS 20000

uint64_t vgpu_batch_beyond(struct gate *g, const struct lane *l, const struct vgpu_stream_batch *b,
			   uint64_t now)
{
	const struct proof *p = &l->proof;
	double took, host;

	if (!p->unproven || p->host_ns <= b->foreign_ns || p->host_ns <= g->gated_ns ||
	    !vgpu_event_between(&took, p->end, b->start))
		return 0;
	took *= vgpu_own_part(g, p->own_ns, p->since_ns, now);
	host = (double)(b->opened_ns - p->host_ns) * (1 + DRIFT) + WAY_NS;
	took -= host + (double)(g->charged_ns - p->charged_ns);
	return took > 0 ? (uint64_t)vgpu_gate_count(g, took, now) : 0;
}

/* Of a time that others of the job had work in, too, each pays its part, and all of it is paid. */
void vgpu_queues_charge(struct gate *g, uint64_t until)
{
	struct vgpu_cache_header *h = vgpu_state.cache.header;
	uint64_t since = g->queues_since_ns, elapsed = until > since ? until - since : 0;
	double part = vgpu_own_part(g, g->queues_own_ns, since, until), charge, counted;

	vgpu_gate_beside(g, until);
	counted = vgpu_gate_count(g, (double)elapsed, until);
	charge = (double)elapsed * part / (1 + g->beside);
	if (!g->beside || part >= 1)
		charge = counted * part;
	g->queues_since_ns = until;
	g->queues_own_ns = vgpu_gate_own(g, until);
	g->charged_ns += (uint64_t)charge;
	if (g->schedule.gate & VGPU_GATE_BUDGET)
		__atomic_sub_fetch(&h->budget[g->card].balance_ns, (int64_t)charge,
				   __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&h->budget[g->card].charged_ns, (uint64_t)charge, __ATOMIC_RELAXED);
	__atomic_add_fetch(&vgpu_my(g->card)->gpu_ns, (uint64_t)charge, __ATOMIC_RELAXED);
	__atomic_add_fetch(&h->elapsed_ns[g->card], elapsed, __ATOMIC_RELAXED);
}
