// SPDX-License-Identifier: Apache-2.0
/* queue.c - contexts, streams, the ops in them, and the faults that tests ask for. */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int sim_ctx_add(struct sim_state *st, uint32_t proc, uint32_t card)
{
	struct sim_card *c = &st->card[card];
	int rc;

	for (uint32_t i = 0; i < SIM_MAX_CTX; i++) {
		struct sim_ctx *x = &st->ctx[i];

		if (x->used)
			continue;
		rc = sim_mem_add(st, proc, card, c->conf.context_cost);
		if (rc)
			return rc;
		memset(x, 0, sizeof(*x));
		x->proc = proc;
		x->card = card;
		x->slice_us = c->conf.slice_us;
		for (int g = 0; g < 3; g++)
			x->aux_slice_us[g] = 1024;
		x->next = c->contexts;
		x->used = 1;
		c->contexts = i + 1;
		return (int)i;
	}
	return -EAGAIN;
}

void sim_ctx_leave(struct sim_state *st, uint32_t ctx)
{
	struct sim_ctx *x = &st->ctx[ctx];
	struct sim_card *c = &st->card[x->card];
	uint32_t *link = &c->contexts;

	while (*link && *link != ctx + 1)
		link = &st->ctx[*link - 1].next;
	if (*link)
		*link = x->next;
	if (c->cur == ctx + 1) {
		if (c->came)
			sim_note(st, ctx, false);
		c->cur = 0;
		c->came = 0;
	}
}

void sim_ctx_drop(struct sim_state *st, uint32_t ctx)
{
	struct sim_ctx *x = &st->ctx[ctx];

	while (x->streams)
		sim_stream_drop(st, x->streams - 1);
	sim_ctx_leave(st, ctx);
	sim_mem_sub(st, x->proc, x->card, st->card[x->card].conf.context_cost);
	x->used = 0;
}

int sim_stream_add(struct sim_state *st, uint32_t ctx, bool legacy, bool nonblocking, int priority)
{
	for (uint32_t i = 0; i < SIM_MAX_STREAMS; i++) {
		struct sim_stream *s = &st->stream[i];
		uint32_t gen = s->gen + 1;

		if (s->used)
			continue;
		memset(s, 0, sizeof(*s));
		s->gen = gen;
		s->ctx = ctx;
		s->legacy = legacy;
		s->nonblocking = nonblocking;
		s->priority = priority;
		s->next = st->ctx[ctx].streams;
		s->used = 1;
		st->ctx[ctx].streams = i + 1;
		return (int)i;
	}
	return -EAGAIN;
}

void sim_stream_drop(struct sim_state *st, uint32_t stream)
{
	struct sim_stream *s = &st->stream[stream];
	struct sim_ctx *x = &st->ctx[s->ctx];
	uint32_t *link = &x->streams;

	while (*link && *link != stream + 1)
		link = &st->stream[*link - 1].next;
	if (*link)
		*link = s->next;
	if (x->run == stream + 1)
		x->run = 0;
	s->gen++;
	s->used = 0;
}

/* -EAGAIN: the ring is full. The index is the op's place in the stream. */
int sim_push(struct sim_state *st, uint32_t stream, const struct sim_op *op, uint64_t *index)
{
	struct sim_stream *s = &st->stream[stream];
	struct sim_ctx *x = &st->ctx[s->ctx];
	struct sim_op *o = sim_op_at(st, stream, s->tail);

	if (s->tail - s->taken >= SIM_RING)
		return -EAGAIN;
	*o = *op;
	o->state = SIM_QUEUED;
	o->seq = ++x->seq;
	if (o->kind == SIM_KERNEL && !(o->flags & SIM_OP_SPIN))
		s->cum_ns += o->left_ns;
	o->cum_ns = s->cum_ns;
	if (index)
		*index = s->tail;
	s->tail++;
	return 0;
}

void sim_finish(struct sim_state *st, uint32_t stream)
{
	struct sim_stream *s = &st->stream[stream];
	struct sim_op *o = sim_op_at(st, stream, s->done);

	if (s->done == s->tail)
		return;
	if (o->kind == SIM_OWNER)
		o->state = SIM_FINISHED;
	else if (o->flags & SIM_OP_SPIN)
		o->left_ns = 0;
}

/* Takes the first fault that fits away from the list, or one from its count. */
bool sim_fault_hit(struct sim_state *st, const char *call, int *code, uint64_t *slow_ns)
{
	bool hit = false;

	*slow_ns = 0;
	for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
		struct sim_fault *f = &st->fault[i];
		size_t n = strlen(f->call);

		if ((f->kind != SIM_FAULT_CODE && f->kind != SIM_FAULT_SLOW) || !f->count)
			continue;
		if (f->pid && f->pid != getpid())
			continue;
		/* cuMemAlloc means cuMemAlloc_v2 too, but not cuMemAllocAsync; * means all */
		if (strcmp(f->call, "*") != 0 &&
		    (strncmp(f->call, call, n) != 0 || (call[n] && call[n] != '_')))
			continue;
		if (f->count > 0 && --f->count == 0)
			st->nfaults--;
		if (f->kind == SIM_FAULT_SLOW)
			*slow_ns += f->slow_ns;
		else if (!hit) {
			*code = f->code;
			hit = true;
		}
	}
	return hit;
}

int sim_fault_add(struct sim_state *st, const struct sim_fault *f)
{
	for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
		if (st->fault[i].kind != SIM_FAULT_NONE && st->fault[i].count)
			continue;
		st->fault[i] = *f;
		st->nfaults++;
		return 0;
	}
	return -ENOSPC;
}

bool sim_slices_refused(struct sim_state *st)
{
	for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
		struct sim_fault *f = &st->fault[i];

		if (f->kind != SIM_FAULT_SLICES || !f->count || (f->pid && f->pid != getpid()))
			continue;
		if (f->count > 0 && --f->count == 0)
			st->nfaults--;
		return true;
	}
	return false;
}
