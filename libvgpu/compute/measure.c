/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - see measure.h. Which launches are measured: in a batch, alone, or not at all. */
#include "measure.h"

/* Events are most of what a gated launch costs the host, where kernels are short. A job in
 * so much credit has them measured now and then, at least once in so many batches: which
 * ones is left to chance, so that no rhythm of the program's evades it. */
#define AMPLE_NS (BURST_NS / 2)
#define TRUST_MOST 13
/* If the host is slower than the card, the first launches of each function are measured
 * alone, and then one in so many of those that look at the budget. */
#define SINGLE_FIRST 4
#define SINGLE_EVERY 4
/* Launches in several streams look at the budget each time, so fewer of them suffice. */
#define AMONG_STREAMS_EVERY 64
/* Streams that run beside each other take less than the sum of their estimates: so long
 * after the last change of streams there is but one. */
#define ONE_STREAM_NS 100000000u

/* And so long since a host has waited for longer than estimates say, all are in doubt. */
#define DOUBT_NS 100000000u

bool vgpu_measure_suspect(const struct gate *g, const struct vgpu_cost *cost)
{
	return g->concurrent && cost->rejected && !g->schedule.others;
}

bool vgpu_measure_known(uint32_t samples, uint64_t est_ns)
{
	return samples >= SURE_SAMPLES && est_ns <= BRIEF_NS;
}

/* Nobody else's work can be in the time of a launch that is measured alone. */
static bool sole(const struct gate *g)
{
	return !g->schedule.others && !g->beside;
}

bool vgpu_measure_each(const struct gate *g, const struct vgpu_cost *cost)
{
	return cost->varies && sole(g);
}

/* What a launch takes while others of the process may run in its time says nothing of its cost. */
static bool among_streams(const struct gate *g, const struct lane *l)
{
	for (unsigned i = 0; i < g->lanes; i++)
		if (&g->lane[i] != l && (g->lane[i].open || g->lane[i].closed))
			return true;
	return false;
}

/* Where its batches say little, what a launch costs is learned from such as are alone. */
static bool may_be_alone(const struct gate *g, uint64_t est_ns)
{
	return vgpu_host_bound(g) && est_ns <= SHORT_NS && sole(g);
}

bool vgpu_measure_unproven(const struct gate *g, const struct lane *l, const struct vgpu_cost *cost,
			   uint64_t est_ns, int64_t balance_ns)
{
	return cost->alone < SINGLE_FIRST && balance_ns < AMPLE_NS && may_be_alone(g, est_ns) &&
	       !among_streams(g, l);
}

/* No neighbour, no other process of the job, no other stream, and far from the limit. */
static bool at_ease(const struct gate *g, uint32_t beside, uint64_t now)
{
	const struct vgpu_budget *budget = &vgpu_state.cache.header->budget[g->card];

	return g->schedule.gate == VGPU_GATE_BUDGET && !g->schedule.others && !beside &&
	       now - g->other_ns > ONE_STREAM_NS && now - g->several_ns > ONE_STREAM_NS &&
	       __atomic_load_n(&budget->balance_ns, __ATOMIC_RELAXED) >= AMPLE_NS;
}

/* No host's time is between two kernels then, so that bounds better what one costs. Its events
 * cost the host as much as two launches. The time of work before it that is not measured would
 * be taken for that between the start event and the launch. At ease few batches are measured:
 * behind each of them one launch, or kernels that became longer would never be seen to. */
bool vgpu_measure_alone(const struct gate *g, const struct lane *l, const struct vgpu_cost *cost,
			uint64_t est_ns, uint64_t now)
{
	const struct vgpu_stream_batch *before =
		&l->ring[(l->first + l->closed + (l->open ? 0u : RING - 1u)) % RING];

	if (vgpu_measure_each(g, cost))
		return true;
	if (!may_be_alone(g, est_ns) || before->unmeasured)
		return false;
	if (among_streams(g, l)) /* only to see whether its launches differ */
		return now / 4 % AMONG_STREAMS_EVERY == 0;
	return cost->alone < SINGLE_FIRST ||
	       (at_ease(g, 0, now) ? !before->single : now / 4 % SINGLE_EVERY == 0);
}

bool vgpu_measure_trust(struct gate *g, const struct lane *l, bool known, uint32_t beside,
			uint64_t now)
{
	/* Who else may record in a thread's default stream, should that thread end? And its proof
	 * needs an entry. */
	if (!known || l->thread || l->closed >= RING - 4 || now - g->surprised_ns < DOUBT_NS ||
	    !at_ease(g, beside, now) || l->proof.host_ns <= g->gated_ns ||
	    l->proof.host_ns <= l->foreign_ns)
		return false;
	if (g->trust_left) {
		g->trust_left--;
		return true;
	}
	g->trust_left = (unsigned)(now % (TRUST_MOST + 1));
	return false;
}
