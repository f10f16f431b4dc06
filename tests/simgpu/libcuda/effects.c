// SPDX-License-Identifier: Apache-2.0
/*
 * effects.c - what finished work does in this process, and the thread that
 * sees to it while the program is elsewhere.
 *
 * Effects are applied in the order of their completion, by whoever holds
 * drv.lock. The thread sleeps until the next urgent op can be done, and for
 * good when there is none.
 */
#define _GNU_SOURCE
#include "local.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_AGAIN_NS 100000ull /* least time between two looks of the thread */
#define LOOK_MAX_NS 10000000ull

/* Cuts what is done off a stream's ring and adds it to the list. */
static struct effect *cut(CUstream s, struct effect *list)
{
	struct sim_stream *m = &drv.st->stream[s->slot];

	for (; m->taken < m->done; m->taken++) {
		struct sim_op *o = sim_op_at(drv.st, s->slot, m->taken);
		struct effect *e = (struct effect *)(uintptr_t)o->cookie;
		struct effect **at = &list;

		if ((o->flags & SIM_OP_URGENT) && s->urgent)
			s->urgent--;
		if (!e)
			continue;
		o->cookie = 0;
		e->done_ns = o->done_ns;
		e->stream = s;
		while (*at && (*at)->done_ns <= e->done_ns)
			at = &(*at)->next;
		e->next = *at;
		*at = e;
	}
	return list;
}

static void count_up(uint64_t addr)
{
	struct block *b = block_find(addr);
	uint32_t v = 0;

	if (!b || b->kind == BLOCK_HOST || b->kind == BLOCK_REGISTERED ||
	    b->kind == BLOCK_MANAGED) {
		__atomic_add_fetch((uint32_t *)(uintptr_t)addr, 1, __ATOMIC_SEQ_CST);
		return;
	}
	content_load(addr, &v, sizeof(v));
	content_fill(addr, v + 1, sizeof(v), 1);
}

static void write_value(const struct effect *e)
{
	struct block *b = block_find(e->dst);

	if (b && b->kind != BLOCK_HOST && b->kind != BLOCK_REGISTERED && b->kind != BLOCK_MANAGED)
		content_fill(e->dst, e->value, e->width, 1);
	else if (e->width == 4)
		__atomic_store_n((uint32_t *)(uintptr_t)e->dst, (uint32_t)e->value,
				 __ATOMIC_SEQ_CST);
	else
		__atomic_store_n((uint64_t *)(uintptr_t)e->dst, e->value, __ATOMIC_SEQ_CST);
}

static void apply(struct effect *e)
{
	struct block *b;

	switch (e->kind) {
	case EFF_EVENT:
		if (e->event->record == e->record) {
			e->event->complete = true;
			e->event->done_ns = e->done_ns;
		}
		break;
	case EFF_WRITE:
		write_value(e);
		break;
	case EFF_COPY:
		content_copy(e->dst, e->src, e->snapshot, e->n);
		break;
	case EFF_FILL:
		content_fill(e->dst, e->value, e->width, e->n);
		break;
	case EFF_COUNT:
		count_up(e->dst);
		break;
	case EFF_SPIN:
		if (e->dst)
			count_up(e->dst);
		break;
	case EFF_FREE:
		b = block_find(e->dst);
		if (b && b->va == e->dst && b->kind == BLOCK_POOL)
			pool_free(b);
		else if (b && b->va == e->dst)
			mem_free(b); /* of cuMemAlloc: may be freed so, too */
		break;
	case EFF_CALL:
	case EFF_CALLBACK:
	case EFF_WAIT_VALUE:
		break; /* done by run_owner before the op could end */
	}
}

void effects_take(void)
{
	struct effect *list = NULL, *e;

	drv_model_lock();
	for (CUcontext c = drv.contexts; c; c = c->next)
		for (CUstream s = c->streams; s; s = s->next)
			list = cut(s, list);
	drv_model_unlock();
	while ((e = list) != NULL) {
		list = e->next;
		apply(e);
		effect_free(e);
	}
	for (CUcontext c = drv.contexts; c; c = c->next) {
		for (CUstream s = c->streams, next; s; s = next) {
			next = s->next;
			if (s->dying &&
			    __atomic_load_n(&drv.st->stream[s->slot].taken, __ATOMIC_RELAXED) ==
				    drv.st->stream[s->slot].tail)
				stream_release(s);
		}
	}
}

/* The comparisons of cuStreamWaitValue: >= (cyclic), ==, and, nor. */
static bool value_met(const struct effect *e)
{
	uint64_t v = 0, want = e->value;

	content_load(e->dst, &v, e->width);
	switch (e->flags & 3) {
	case 0:
		return e->width == 4 ? (int32_t)((uint32_t)v - (uint32_t)want) >= 0
				     : (int64_t)(v - want) >= 0;
	case 1:
		return v == want;
	case 2:
		return (v & want) != 0;
	default:
		return e->width == 4 ? (uint32_t)~(v | want) != 0 : ~(v | want) != 0;
	}
}

static bool spin_over(const struct effect *e)
{
	uint32_t v = 0;

	content_load(e->src, &v, sizeof(v));
	return v != 0;
}

static void end_op(uint32_t slot, uint32_t gen, uint64_t index)
{
	drv_model_lock();
	sim_advance_all(drv.st);
	if (drv.st->stream[slot].gen == gen && drv.st->stream[slot].done == index)
		sim_finish(drv.st, slot);
	sim_advance_all(drv.st);
	drv_model_unlock();
	pthread_cond_broadcast(&drv.changed);
}

/* Sees to an op at the head of a stream that waits for its owner.
 * False: it has to wait on. Host functions run without any lock. */
static bool run_owner(CUstream s, const struct effect *e, uint64_t index)
{
	uint32_t slot = s->slot, gen = s->gen;
	struct effect call = *e;

	if (e->kind == EFF_WAIT_VALUE && !value_met(e))
		return false;
	if (e->kind == EFF_SPIN && !spin_over(e))
		return false;
	if (e->kind == EFF_CALL || e->kind == EFF_CALLBACK) {
		pthread_mutex_unlock(&drv.lock);
		if (call.kind == EFF_CALL)
			call.fn(call.data);
		else
			call.callback(call.stream, CUDA_SUCCESS, call.data);
		pthread_mutex_lock(&drv.lock);
	}
	end_op(slot, gen, index);
	return true;
}

/* The effect of the head op if it is the owner's turn. */
static struct effect *owners_turn(CUstream s, uint64_t *index)
{
	struct sim_stream *m = &drv.st->stream[s->slot];
	struct sim_op *o = sim_op_at(drv.st, s->slot, m->done);

	*index = m->done;
	if (m->done == m->tail || o->state != SIM_STARTED)
		return NULL;
	if (o->kind == SIM_OWNER || (o->kind == SIM_KERNEL && (o->flags & SIM_OP_SPIN)))
		return (struct effect *)(uintptr_t)o->cookie;
	return NULL;
}

static uint64_t next_urgent(CUstream s)
{
	struct sim_stream *m = &drv.st->stream[s->slot];

	for (uint64_t i = m->done; i < m->tail; i++)
		if (sim_op_at(drv.st, s->slot, i)->flags & SIM_OP_URGENT)
			return sim_predict(drv.st, s->slot, i);
	return SIM_NEVER;
}

/* One look at all streams. Returns when to look again; 0: at once. */
static uint64_t look(void)
{
	uint64_t at = SIM_NEVER, now;

	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	now = sim_now();
	for (CUcontext c = drv.contexts; c; c = c->next) {
		for (CUstream s = c->streams; s; s = s->next) {
			struct effect *e;
			uint64_t index, when;

			if (!s->urgent)
				continue;
			drv_model_lock();
			e = owners_turn(s, &index);
			when = e ? now : next_urgent(s);
			drv_model_unlock();
			if (e && run_owner(s, e, index))
				return 0; /* the lists may have changed meanwhile */
			if (when < at)
				at = when;
		}
	}
	if (at == SIM_NEVER)
		return at;
	if (at < now + LOOK_AGAIN_NS)
		return now + LOOK_AGAIN_NS;
	return at > now + LOOK_MAX_NS ? now + LOOK_MAX_NS : at;
}

static void *effects_thread(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&drv.lock);
	for (;;) {
		uint64_t at = drv.ready ? look() : SIM_NEVER;
		struct timespec ts = {(time_t)(at / 1000000000), (long)(at % 1000000000)};

		if (at == SIM_NEVER)
			pthread_cond_wait(&drv.wake, &drv.lock);
		else if (at)
			pthread_cond_timedwait(&drv.wake, &drv.lock, &ts);
	}
	return NULL;
}

/* Signals of the program are for the program's own threads. */
void effects_start_thread(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t id;

	if (drv.thread_started)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	drv.thread_started = pthread_create(&id, &attr, effects_thread, NULL) == 0;
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
