// SPDX-License-Identifier: Apache-2.0
/* queue.c - streams of this process, and the way of work into them. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>

#define NAP_MIN_NS 20000ull
#define NAP_MAX_NS 5000000ull
#define MAKE_ROOM 32 /* ops to wait for when a stream is full: fewer wake-ups */

static _Thread_local struct {
	uint64_t ctx_id;
	CUstream stream;
} own_stream[8];

CUstream stream_new(CUcontext ctx, bool legacy, unsigned flags, int priority)
{
	CUstream s = calloc(1, sizeof(*s));
	int slot;

	if (!s)
		return NULL;
	drv_model_lock();
	slot = sim_stream_add(drv.st, (uint32_t)ctx->slot, legacy, flags & CU_STREAM_NON_BLOCKING,
			      priority);
	if (slot >= 0)
		s->gen = drv.st->stream[slot].gen;
	drv_model_unlock();
	if (slot < 0) {
		free(s);
		return NULL;
	}
	s->magic = MAGIC_STREAM;
	s->ctx = ctx;
	s->slot = (uint32_t)slot;
	s->flags = flags;
	s->priority = priority;
	s->id = ++drv.ids;
	s->next = ctx->streams;
	ctx->streams = s;
	return s;
}

/* Takes the stream out of the machine with all it holds. */
void stream_release(CUstream s)
{
	CUstream *link = &s->ctx->streams;
	struct sim_stream *m = &drv.st->stream[s->slot];

	capture_drop_stream(s);
	drv_model_lock();
	for (uint64_t i = m->taken; i < m->tail; i++) {
		struct sim_op *o = sim_op_at(drv.st, s->slot, i);

		if (o->cookie)
			effect_free((struct effect *)(uintptr_t)o->cookie);
		o->cookie = 0;
	}
	sim_stream_drop(drv.st, s->slot);
	drv_model_unlock();
	while (*link != s)
		link = &(*link)->next;
	*link = s->next;
	s->magic = 0;
	free(s);
}

/* The thread ends, and its own streams with it. */
static void thread_ends(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&drv.lock);
	for (CUcontext c = drv.contexts; c; c = c->next)
		for (int i = 0; i < 8; i++)
			if (own_stream[i].ctx_id == c->id)
				capture_drop_stream(own_stream[i].stream);
	pthread_mutex_unlock(&drv.lock);
}

static pthread_key_t own_streams;

static void make_key(void)
{
	pthread_key_create(&own_streams, thread_ends);
}

static CUstream per_thread_stream(CUcontext ctx)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int at = 0;

	for (int i = 0; i < 8; i++) {
		if (own_stream[i].ctx_id == ctx->id)
			return own_stream[i].stream;
		if (!own_stream[i].ctx_id)
			at = i;
	}
	pthread_once(&once, make_key);
	pthread_setspecific(own_streams, &own_streams);
	own_stream[at].stream = stream_new(ctx, false, 0, 0);
	own_stream[at].ctx_id = own_stream[at].stream ? ctx->id : 0;
	if (own_stream[at].stream)
		own_stream[at].stream->per_thread = true;
	return own_stream[at].stream;
}

__thread bool drv_per_thread;

CUstream stream_of(CUstream handle)
{
	if (!handle && drv_per_thread)
		return per_thread_stream(drv_current());
	if (handle == NULL || handle == CU_STREAM_LEGACY)
		return drv_current()->legacy;
	if (handle == CU_STREAM_PER_THREAD)
		return per_thread_stream(drv_current());
	for (CUcontext c = drv.contexts; c; c = c->next)
		for (CUstream s = c->streams; s; s = s->next)
			if (s == handle && !s->dying)
				return s; /* compared, never followed: it may be long gone */
	return NULL;
}

struct effect *effect_new(enum effect_kind kind)
{
	struct effect *e = calloc(1, sizeof(*e));

	if (e)
		e->kind = kind;
	return e;
}

struct effect *effect_copy(const struct effect *e)
{
	struct effect *c = effect_new(e->kind);

	if (!c)
		return NULL;
	*c = *e;
	c->next = NULL;
	if (e->snapshot) {
		c->snapshot = malloc(e->n);
		if (!c->snapshot) {
			free(c);
			return NULL;
		}
		memcpy(c->snapshot, e->snapshot, e->n);
	}
	if (c->event)
		c->event->pending++;
	return c;
}

void effect_free(struct effect *e)
{
	if (!e)
		return;
	if (e->event && --e->event->pending == 0 && e->event->destroyed)
		free(e->event);
	free(e->snapshot);
	free(e);
}

void drv_sleep_until(uint64_t ns)
{
	struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	pthread_cond_timedwait(&drv.changed, &drv.lock, &ts);
}

static uint64_t nap(uint64_t predicted)
{
	uint64_t now = sim_now();

	if (predicted < now + NAP_MIN_NS)
		return now + NAP_MIN_NS;
	return predicted > now + NAP_MAX_NS ? now + NAP_MAX_NS : predicted;
}

CUresult stream_wait(uint32_t slot, uint32_t gen, uint64_t index)
{
	struct sim_stream *m = &drv.st->stream[slot];

	for (;;) {
		uint64_t at = 0, late = late_ns();
		bool done;

		drv_model_lock();
		sim_advance_all(drv.st);
		late_count(late);
		done = m->gen != gen || m->done > index;
		if (!done)
			at = sim_predict(drv.st, slot, index);
		drv_model_unlock();
		if (done)
			break;
		if (drv.st->card[drv.st->ctx[m->ctx].card].lost)
			return (CUresult)drv.st->card[drv.st->ctx[m->ctx].card].lost;
		drv_sleep_until(nap(at));
		if (!drv.ready)
			return CUDA_ERROR_DEINITIALIZED;
	}
	effects_take();
	return CUDA_SUCCESS;
}

static struct sim_op make_op(CUstream s, const struct work *w)
{
	const struct sim_card_config *c = &drv.st->card[s->ctx->card].conf;
	struct sim_op op = {.kind = w->kind, .flags = w->flags, .left_ns = w->ns};

	op.dep_stream = w->dep_stream;
	op.dep_gen = w->dep_gen;
	op.dep_index = w->dep_index;
	op.cookie = (uintptr_t)w->eff;
	op.part = w->part;
	if (w->kind == SIM_KERNEL) {
		op.left_ns += c->gap_ns;
		op.ready_ns = sim_now() + c->latency_ns;
	}
	return op;
}

/* Takes over w->eff, also when it fails. Sleeps while the stream is full. */
CUresult stream_submit(CUstream s, const struct work *w, uint64_t *index)
{
	struct capture *beside;
	struct sim_op op;
	CUresult rc;
	int full;

	if (s->capture) {
		rc = s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
					 : graph_add(s->capture->graph, w, -1, NULL);
		effect_free(w->eff);
		return rc;
	}
	beside = capture_beside(s);
	if (beside) {
		beside->invalid = true;
		effect_free(w->eff);
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	op = make_op(s, w);
	do {
		uint64_t at = 0, late = late_ns();

		drv_model_lock();
		sim_advance_all(drv.st);
		late_count(late);
		full = sim_push(drv.st, s->slot, &op, index);
		if (full)
			at = sim_predict(drv.st, s->slot, drv.st->stream[s->slot].done + MAKE_ROOM);
		drv_model_unlock();
		if (!full)
			break;
		effects_take();
		if (drv.st->stream[s->slot].tail - drv.st->stream[s->slot].taken < SIM_RING)
			continue;
		drv_sleep_until(nap(at));
		if (!drv.ready || !stream_of(s)) {
			effect_free(w->eff);
			return CUDA_ERROR_DEINITIALIZED;
		}
	} while (full);
	if (w->flags & SIM_OP_URGENT) {
		s->urgent++;
		pthread_cond_signal(&drv.wake);
	}
	return CUDA_SUCCESS;
}

CUresult submit_effect(CUstream s, enum sim_kind kind, unsigned flags, uint64_t ns,
		       struct effect *e)
{
	struct work w = {.kind = kind, .flags = flags, .ns = ns, .eff = e};

	return e ? stream_submit(s, &w, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
}
