/* SPDX-License-Identifier: Apache-2.0 */
/* streams.c - see streams.h. */
#include "streams.h"

/* Kept at most of the time that was not charged: what is longer ago has nothing to do with the
 * batches of now. */
#define IDLE_MOST_NS 20e6
/* Of so much time of batches is known what it covers; then half of it is forgotten. */
#define KNOWN_NS 100e6
/* What a batch costs is known but for less than this part of its time. */
#define EXACT 0.1

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
	g->spans_ns += span;
	g->covered_ns += busy;
	own = g->spans_ns > 0 ? span * g->covered_ns / g->spans_ns : span;
	if (*slack + held < EXACT * span)
		return own;
	*slack += span - own;
	return span;
}

/* Not before: one lane is looked at after the other, and all of the time that they cover is the
 * first one's. */
void vgpu_streams_reaped(struct gate *g)
{
	if (g->spans_ns <= KNOWN_NS)
		return;
	g->spans_ns /= 2;
	g->covered_ns /= 2;
}
