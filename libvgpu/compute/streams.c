/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - see streams.h. */
#include "streams.h"
#include "event.h"

/* Kept at most of the time that was not charged: what is longer ago has nothing to do with the
 * batches of now. */
#define IDLE_MOST_NS 20e6
/* Of so much time of batches is known what it covers; then half of it is forgotten. */
#define KNOWN_NS 100e6
/* What a batch costs is known but for less than this part of its time. */
#define EXACT 0.1

/* How long a batch took beside the work of others says only what it costs at most. gresd lets each
 * job be without company for moments, in which costs are learned. */
bool vgpu_streams_in_company(const struct gate *g, const struct vgpu_stream_batch *b)
{
	return g->concurrent && (g->schedule.others || g->others_at_ns > b->opened_ns);
}

bool vgpu_streams_beside(const struct gate *g, const struct vgpu_stream_batch *b)
{
	return g->several_ns >= b->opened_ns;
}

/* Streams beside each other cover the same time, which is charged once, with the first of them
 * that is seen. But where that is charged less, as the card may have waited for the host in
 * it, or worked for other jobs, the rest may have been another stream's work: so out of that rest
 * another is charged what it usually takes. */
double vgpu_streams_charge(struct gate *g, const struct vgpu_stream_batch *b, double usual,
			   double span, double busy, double charge, bool company)
{
	double *idle = &g->idle_ns[company], more;

	if (b->foreign || !vgpu_streams_beside(g, b))
		return charge;
	if (charge < busy) {
		*idle += busy - charge;
		if (*idle > IDLE_MOST_NS)
			*idle = IDLE_MOST_NS;
		return charge;
	}
	more = (usual < span ? usual : span) - charge;
	if (more > *idle)
		more = *idle;
	if (more <= 0)
		return charge;
	*idle -= more;
	return charge + more;
}

/* Each has its part of the time evenly: together that is the time which they cover. That holds on
 * the average. Where a batch's time says no more than what it costs at most, the least of many would
 * be learned: there all of the rest may be its own. */
double vgpu_streams_own(struct gate *g, const struct vgpu_stream_batch *b, double span, double busy,
			double held, double *slack)
{
	double own;

	if (b->foreign || !vgpu_streams_beside(g, b))
		return span;
	g->spans_ns += span - b->so_far_ns;
	g->covered_ns += busy;
	own = g->own_part > 0 ? span * g->own_part : span;
	if (*slack + held < EXACT * span)
		return own;
	*slack += span - own;
	return span;
}

/* Adds the part of an unfinished batch that other streams' batches have covered. Otherwise that time
 * would count as theirs alone when the moment without company ends before this batch does (own_part
 * is covered_ns / spans_ns). */
static void count_so_far(struct gate *g, struct lane *l)
{
	struct vgpu_stream_batch *b = &l->ring[l->first];
	const struct gate_context *c = l->context;
	double began, so_far;

	if (!l->closed || c->ends || !c->anchored || b->unmeasured || b->foreign || !b->launches ||
	    !vgpu_streams_beside(g, b) || vgpu_streams_in_company(g, b) ||
	    !vgpu_event_between(&began, c->anchor, b->start))
		return;
	so_far = vgpu_cover_since(&c->cover, began);
	g->spans_ns += so_far - b->so_far_ns;
	b->so_far_ns = so_far;
}

/* Not before: one lane is looked at after the other, and all of the time that they cover is the
 * first one's. */
void vgpu_streams_reaped(struct gate *g)
{
	if (g->spans_ns <= 0)
		return;
	for (unsigned i = 0; i < g->lanes; i++)
		count_so_far(g, &g->lane[i]);
	g->own_part = g->covered_ns < g->spans_ns ? g->covered_ns / g->spans_ns : 1;
	if (g->spans_ns <= KNOWN_NS)
		return;
	g->spans_ns /= 2;
	g->covered_ns /= 2;
}
