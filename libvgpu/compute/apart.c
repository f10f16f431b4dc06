/* SPDX-License-Identifier: Apache-2.0 */
/* apart.c - see apart.h. Launches that are measured one by one. */
#include <stdlib.h>

#include "apart.h"
#include "event.h"
#include "own_time.h"

/* Events in it would not be safe. */
static bool may_end(const struct gate *g, CUcontext ctx)
{
	for (unsigned i = 0; i < CONTEXTS; i++)
		if (g->context[i].ctx == ctx && g->context[i].ends)
			return true;
	for (const struct vgpu_apart *a = g->apart; a; a = a->next)
		if (a->ctx == ctx && a->ends)
			return true;
	return false;
}

static bool record(struct gate *g, const struct vgpu_launch *l, struct vgpu_apart *a, CUevent *slot)
{
	bool ok;

	a->busy = true;
	ok = vgpu_event_put(g, l->stream, slot, &a->recording);
	a->busy = false;
	return ok;
}

struct vgpu_apart *vgpu_apart_enter(struct gate *g, CUcontext ctx, const struct vgpu_launch *l,
				    uint64_t now)
{
	struct vgpu_apart *a;

	if (vgpu_events_barred() || may_end(g, ctx))
		return NULL;
	a = calloc(1, sizeof *a);
	if (!a)
		return NULL;
	a->ctx = ctx;
	a->entered = true;
	a->batch.est_ns = l->est_ns;
	a->batch.more_ns = l->more_ns;
	a->batch.asked_ns = now;
	a->batch.own_ns = vgpu_gate_own(g, now);
	a->batch.past = l->past;
	a->next = g->apart;
	g->apart = a;
	g->inflight_ns += l->est_ns;
	g->more_ns += l->more_ns;
	__atomic_store_n(&vgpu_my(l->card)->inflight_ns, g->inflight_ns, __ATOMIC_RELEASE);
	if (record(g, l, a, &a->batch.own_start))
		a->batch.start = a->batch.own_start;
	return a;
}

void vgpu_apart_leave(struct gate *g, const struct vgpu_launch *l, CUresult result)
{
	struct vgpu_apart *a = l->apart;

	a->batch.launches = result == CUDA_SUCCESS;
	a->unmeasured = !a->batch.launches || !a->ctx || a->ends || vgpu_events_barred() ||
			!record(g, l, a, &a->batch.end);
	a->entered = false;
}

static bool completed(const struct vgpu_apart *a)
{
	return !a->entered && !a->ends &&
	       (a->unmeasured || vgpu_event_query(a->batch.end) != CUDA_ERROR_NOT_READY);
}

struct vgpu_apart *vgpu_apart_completed(struct gate *g)
{
	for (struct vgpu_apart **link = &g->apart, *a; (a = *link); link = &a->next) {
		if (completed(a)) {
			*link = a->next;
			return a;
		}
	}
	return NULL;
}

struct vgpu_apart *vgpu_apart_gone(struct gate *g, CUcontext ctx)
{
	for (struct vgpu_apart **link = &g->apart, *a; (a = *link); link = &a->next) {
		if (a->ctx != ctx)
			continue;
		a->ctx = NULL;
		if (a->entered) { /* taken off when its thread has left */
			a->ends = 0;
			continue;
		}
		*link = a->next;
		return a;
	}
	return NULL;
}

void vgpu_apart_free(struct vgpu_apart *a)
{
	bool pushed;

	if (a->ctx) {
		if (vgpu_event_enter(a->ctx, &pushed)) {
			vgpu_event_destroy(&a->batch.own_start);
			vgpu_event_destroy(&a->batch.end);
		}
		vgpu_event_leave(pushed);
	}
	free(a);
}

void vgpu_apart_ends(struct gate *g, CUcontext ctx, bool begins)
{
	for (struct vgpu_apart *a = g->apart; a; a = a->next) {
		if (a->ctx != ctx)
			continue;
		if (begins)
			a->ends++;
		else
			a->ends -= a->ends != 0;
	}
}

static bool busy(const struct gate *g, CUcontext ctx)
{
	for (const struct vgpu_apart *a = g->apart; a; a = a->next)
		if (a->busy && a->ctx == ctx)
			return true;
	return false;
}

void vgpu_apart_wait(struct gate *g, CUcontext ctx)
{
	for (unsigned i = 0; busy(g, ctx) && i < NAPS; i++)
		vgpu_gate_nap(g, NAP_NS);
}

static bool recording(const struct gate *g)
{
	for (const struct vgpu_apart *a = g->apart; a; a = a->next)
		if (a->recording)
			return true;
	return false;
}

void vgpu_apart_recorded(struct gate *g)
{
	for (unsigned i = 0; recording(g) && i < NAPS; i++)
		vgpu_gate_nap(g, NAP_NS);
}
