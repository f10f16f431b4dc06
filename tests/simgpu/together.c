// SPDX-License-Identifier: Apache-2.0
/*
 * together.c - the contexts of one MPS server. For the card's scheduler they
 * are one; while it has the card, a kernel of each runs beside those of the
 * others: at full speed where the parts of the card that they need are at most
 * all of it, else all slower, in proportion.
 */
#include "model.h"

bool sim_together(const struct sim_state *st, uint32_t a, uint32_t b)
{
	return a == b || (st->ctx[a].server && st->ctx[a].server == st->ctx[b].server);
}

uint32_t sim_runnable_with(struct sim_state *st, uint32_t ctx, uint64_t now)
{
	uint32_t found = 0;

	if (!st->ctx[ctx].server)
		return sim_runnable(st, ctx, now);
	for (uint32_t x = st->card[st->ctx[ctx].card].contexts; x; x = st->ctx[x - 1].next) {
		uint32_t i = sim_together(st, x - 1, ctx) ? sim_runnable(st, x - 1, now) : 0;

		if (!i)
			continue;
		found = i;
		if (sim_op_at(st, i - 1, st->stream[i - 1].done)->kind == SIM_MARK)
			break;
	}
	return found;
}

/* The kernel that a context has on the card together with another; NULL: none. */
static struct sim_op *kernel_of(struct sim_state *st, uint32_t x, uint32_t ctx, uint64_t now,
				uint32_t *stream)
{
	if (!sim_together(st, x, ctx))
		return NULL;
	*stream = sim_runnable(st, x, now) - 1;
	if (*stream == UINT32_MAX)
		return NULL;
	return sim_op_at(st, *stream, st->stream[*stream].done);
}

/* Time for work of a kernel where all need that much, in millionths of the card. */
static uint64_t slowed(uint64_t ns, uint64_t need)
{
	return need > 1000000 ? (ns * need + 999999) / 1000000 : ns;
}

uint64_t sim_run_together(struct sim_state *st, uint32_t ctx, uint64_t now, uint64_t dt)
{
	uint64_t need = 0;
	uint32_t first = st->card[st->ctx[ctx].card].contexts, stream;
	struct sim_op *o;

	for (uint32_t x = first; x; x = st->ctx[x - 1].next)
		if ((o = kernel_of(st, x - 1, ctx, now, &stream)) != NULL)
			need += o->part ? o->part : 1000000;
	for (uint32_t x = first; x; x = st->ctx[x - 1].next)
		if ((o = kernel_of(st, x - 1, ctx, now, &stream)) != NULL &&
		    slowed(o->left_ns, need) < dt)
			dt = slowed(o->left_ns, need);
	for (uint32_t x = first; x; x = st->ctx[x - 1].next) {
		uint64_t did = need > 1000000 ? dt * 1000000 / need : dt;

		o = kernel_of(st, x - 1, ctx, now, &stream);
		if (!o)
			continue;
		st->ctx[x - 1].run = stream + 1;
		sim_work(st, stream, o, did < o->left_ns ? did : o->left_ns, now + dt);
	}
	return dt;
}
