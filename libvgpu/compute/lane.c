/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - see lane.h. The lane of a launch: one stream of one context. */
#include <string.h>

#include "../atomic.h"
#include "charge.h"
#include "event.h"
#include "lane.h"
#include "own_time.h"
#include "reap.h"

/* A launch without a lane is charged for this time at most. No other launch goes past the budget meanwhile. */
#define LANELESS_NS 10000000000u

__thread char vgpu_this_thread;

struct gate_context *vgpu_context_find(struct gate *g, CUcontext ctx)
{
	for (int i = 0; ctx && i < CONTEXTS; i++)
		if (g->context[i].ctx == ctx)
			return &g->context[i];
	return NULL;
}

/* Nothing of it is on its way, and no thread is at its events. */
static bool idle(const struct lane *l)
{
	return !l->open && !l->closed && !l->busy;
}

static bool context_idle(const struct gate *g, const struct gate_context *c)
{
	for (unsigned i = 0; i < g->lanes; i++)
		if (g->lane[i].context == c && !idle(&g->lane[i]))
			return false;
	return !c->ends;
}

/* Its events are of a context, and no use to another one. */
static void forget_events(struct lane *l)
{
	struct gate_context *c = l->context;
	bool pushed;

	if (vgpu_event_enter(c->ctx, &pushed)) {
		for (unsigned i = 0; i < RING; i++) {
			vgpu_event_destroy(&l->ring[i].own_start);
			vgpu_event_destroy(&l->ring[i].end);
		}
	}
	vgpu_event_leave(pushed);
	memset(l, 0, sizeof *l);
	l->context = c;
}

/* Of an idle context, whose entry another one is to have. */
static void forget_context(struct gate *g, struct gate_context *c)
{
	bool pushed;

	for (unsigned i = 0; i < g->lanes; i++)
		if (g->lane[i].context == c)
			forget_events(&g->lane[i]);
	if (vgpu_event_enter(c->ctx, &pushed)) {
		vgpu_event_destroy(&c->anchor);
		vgpu_event_destroy(&c->next_anchor);
	}
	vgpu_event_leave(pushed);
}

/* A context that has launched keeps its entry until it ends, or another one needs it. */
static struct gate_context *context_of(struct gate *g, CUcontext ctx)
{
	struct gate_context *c = vgpu_context_find(g, ctx), *spare = NULL;

	for (int i = 0; !c && i < CONTEXTS; i++) {
		struct gate_context *other = &g->context[i];

		if (!other->ctx || ((!spare || (spare->ctx && other->used < spare->used)) &&
				    context_idle(g, other)))
			spare = other;
	}
	if (spare) {
		if (spare->ctx)
			forget_context(g, spare);
		c = spare;
		*c = (struct gate_context){.ctx = ctx, .gate = g};
	}
	if (c)
		c->used = ++g->uses;
	return c;
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
		if (!idle(l) || (l->context && l->context->ends))
			continue;
		/* The first of: one of this context, a new one, one of another context. */
		if (!spare || (spare->context != c && l->context == c) ||
		    (spare->context && spare->context != c && !l->context))
			spare = l;
	}
	if (!spare)
		return NULL;
	if (spare->context && spare->context != c)
		forget_events(spare);
	spare->context = c;
	spare->stream = stream;
	spare->thread = thread;
	__atomic_store_n(&spare->marks, false, __ATOMIC_RELAXED);
	if (g->lanes < spare - g->lane + 1)
		g->lanes = (unsigned)(spare - g->lane + 1);
	return spare;
}

/* All lanes have work, or as many contexts as there are places for. */
static bool lanes_taken(const struct gate *g)
{
	unsigned lanes = 0, contexts = 0;

	for (unsigned i = 0; i < g->lanes; i++)
		lanes += !idle(&g->lane[i]);
	for (unsigned i = 0; i < CONTEXTS; i++)
		contexts += g->context[i].ctx && !context_idle(g, &g->context[i]);
	return lanes == LANES || contexts == CONTEXTS;
}

/* All batches of the lane are taken, and something that is no work is behind the last one: one more
 * launch would be charged for that. */
static bool full(const struct lane *l)
{
	return l->closed >= RING - 2 && !l->open &&
	       l->ring[(l->first + l->closed - 1) % RING].last_ns <= l->foreign_ns;
}

struct lane *vgpu_lane_free(struct gate *g, CUcontext ctx, CUstream stream)
{
	struct lane *l = vgpu_lane_of(g, ctx, stream);

	for (unsigned i = 0; i < NAPS && (!l || l->busy || full(l));) {
		i += !l || !l->busy;
		vgpu_gate_nap(g, NAP_NS);
		vgpu_batch_reap(g, vgpu_now());
		l = vgpu_lane_of(g, ctx, stream);
	}
	return l;
}

void vgpu_laneless_charge(struct gate *g, uint64_t now, bool ended)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[g->card];
	uint64_t since = g->laneless_ns, ns;

	if (likely(!since))
		return;
	ns = (uint64_t)(vgpu_gate_count(g, (double)(now - since), now) *
			vgpu_own_part(g, g->laneless_own_ns, since, now));
	vgpu_gate_charge(g, ns, 0, ns);
	g->laneless_ns = now;
	g->laneless_own_ns = vgpu_gate_own(g, now);
	if (ended || now >= g->laneless_until_ns || !lanes_taken(g)) {
		g->laneless_ns = 0;
		g->past_ns = now + vgpu_budget_wait(budget, g->schedule.cores, 1);
	}
}

void vgpu_laneless_launch(struct gate *g, CUcontext ctx, const struct vgpu_launch *l, uint64_t now)
{
	vgpu_laneless_charge(g, now, false);
	if (!g->laneless_ns) {
		g->laneless_ctx = ctx;
		g->laneless_stream = l->stream;
	} else if (g->laneless_ctx != ctx || g->laneless_stream != l->stream) {
		g->laneless_ctx = NULL;
	}
	g->laneless_ns = now;
	g->laneless_own_ns = vgpu_gate_own(g, now);
	g->past_ns = g->laneless_until_ns = now + LANELESS_NS;
	vgpu_gate_charge(g, l->est_ns, l->est_ns, l->est_ns);
}
