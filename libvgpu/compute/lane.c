/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - see lane.h. The lane of a launch: one stream of one context. */
#include "lane.h"
#include "event.h"

__thread char vgpu_this_thread;

struct gate_context *vgpu_context_find(struct gate *g, CUcontext ctx)
{
	for (int i = 0; ctx && i < CONTEXTS; i++)
		if (g->context[i].ctx == ctx)
			return &g->context[i];
	return NULL;
}

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

struct lane *vgpu_lane_free(struct gate *g, CUcontext ctx, CUstream stream)
{
	struct lane *l = vgpu_lane_of(g, ctx, stream);

	while (l && l->busy) {
		vgpu_gate_nap(g, NAP_NS);
		l = vgpu_events_barred() ? NULL : vgpu_lane_of(g, ctx, stream);
	}
	return l;
}
