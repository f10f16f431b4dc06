// SPDX-License-Identifier: Apache-2.0
/*
 * predict.c - when can an op be done? A waiter sleeps until then and looks
 * again. New work of others only makes it later, so waking up is never late
 * except when another context dies or ends early; waiters cap their sleep.
 */
#define _GNU_SOURCE
#include "model.h"

#define OWNER_NS 300000ull /* look again so soon; the owner also wakes its waiters */
#define MAX_CHAIN 8        /* waits for streams that wait for streams */

static uint64_t predict(const struct sim_state *st, uint32_t stream, uint64_t index, int depth);

/* Index of the first queued op of a stream that was submitted after seq. */
static uint64_t first_after(const struct sim_state *st, uint32_t stream, uint64_t seq)
{
	uint64_t lo = st->stream[stream].done, hi = st->stream[stream].tail;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (st->ring[stream][mid % SIM_RING].seq <= seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool sim_pending(const struct sim_state *st, uint32_t ctx, uint64_t seq, uint32_t *stream,
		 uint64_t *index)
{
	for (uint32_t i = st->ctx[ctx].streams; i; i = st->stream[i - 1].next) {
		uint64_t after = first_after(st, i - 1, seq);

		if (after == st->stream[i - 1].done)
			continue;
		*stream = i - 1;
		*index = after - 1;
		return true;
	}
	return false;
}

/* Kernel time queued in a stream in front of and with the op submitted as seq. */
static uint64_t queued_up_to(const struct sim_state *st, uint32_t stream, uint64_t seq)
{
	const struct sim_stream *s = &st->stream[stream];
	uint64_t after = first_after(st, stream, seq);
	uint64_t cum;

	if (after == s->done)
		return 0;
	cum = st->ring[stream][(after - 1) % SIM_RING].cum_ns;
	return cum > s->exec_ns ? cum - s->exec_ns : 0;
}

static uint64_t context_work(const struct sim_state *st, uint32_t ctx, uint64_t seq, uint32_t only)
{
	uint64_t sum = 0;

	for (uint32_t i = st->ctx[ctx].streams; i; i = st->stream[i - 1].next) {
		const struct sim_stream *s = &st->stream[i - 1];

		if (s->done == s->tail)
			continue;
		/* streams that wait for something may run later than the op */
		if (i - 1 != only && st->ring[i - 1][s->done % SIM_RING].kind != SIM_KERNEL)
			continue;
		sum += queued_up_to(st, i - 1, seq);
	}
	return sum;
}

/* Plays whole turns with each context's queued work until `want` is done. */
static uint64_t play_turns(const struct sim_state *st, uint32_t ctx, uint64_t want)
{
	const struct sim_card *c = &st->card[st->ctx[ctx].card];
	uint32_t who[16];
	uint64_t left[16], t = 0, slice;
	uint32_t n = 0, at = 0, busy;

	for (uint32_t x = c->contexts; x && n < 16; x = st->ctx[x - 1].next) {
		uint64_t w =
			x - 1 == ctx ? want : context_work(st, x - 1, SIM_NEVER, SIM_MAX_STREAMS);

		/* those that run beside it may hold it up, or not */
		if (!w || (x - 1 != ctx && sim_together(st, x - 1, ctx)))
			continue;
		if (c->cur && sim_together(st, x - 1, c->cur - 1))
			at = n;
		who[n] = x - 1;
		left[n++] = w;
	}
	if (n < 2)
		return want;
	busy = n;
	slice = c->cur && sim_together(st, who[at], c->cur - 1) ? c->slice_left_ns
								: sim_slice_ns(st, who[at]);
	t = c->change_left_ns + c->switch_left_ns;
	for (int turn = 0; turn < 64; turn++) {
		uint64_t run = left[at] < slice || busy == 1 ? left[at] : slice;

		t += run;
		left[at] -= run;
		if (who[at] == ctx && !left[at])
			break;
		if (!left[at])
			busy--;
		do
			at = (at + 1) % n;
		while (!left[at]);
		slice = sim_slice_ns(st, who[at]);
		if (busy > 1 || !run) {
			t += c->conf.switch_ns;
			slice = slice > c->conf.switch_slice_ns ? slice - c->conf.switch_slice_ns
								: 1000;
		}
	}
	return t;
}

/* When the head of a stream can go on: copies know their end, waits follow the
 * op that they wait for, and the owner's own pace cannot be known. */
static uint64_t head_ready(const struct sim_state *st, uint32_t stream, uint64_t now, int depth)
{
	const struct sim_stream *s = &st->stream[stream];
	const struct sim_op *head = &st->ring[stream][s->done % SIM_RING];
	const struct sim_stream *dep = &st->stream[head->dep_stream];
	uint64_t at;

	if (head->kind == SIM_COPY && head->state == SIM_STARTED)
		return head->done_ns;
	if (head->kind == SIM_OWNER)
		return now + OWNER_NS;
	if (head->kind != SIM_WAIT || dep->gen != head->dep_gen || depth == MAX_CHAIN)
		return head->ready_ns > now ? head->ready_ns : now;
	at = predict(st, head->dep_stream, head->dep_index, depth + 1);
	return at > now ? at : now;
}

static uint64_t predict(const struct sim_state *st, uint32_t stream, uint64_t index, int depth)
{
	const struct sim_stream *s = &st->stream[stream];
	const struct sim_op *o = &st->ring[stream][index % SIM_RING];
	uint64_t work, at = st->card[st->ctx[s->ctx].card].now_ns;

	if (index < s->done || index >= s->tail)
		return at;
	at = head_ready(st, stream, at, depth);
	work = context_work(st, s->ctx, o->seq, stream);
	if (!work && o->kind != SIM_KERNEL && o->kind != SIM_MARK)
		return at;
	return at + play_turns(st, s->ctx, work ? work : 1); /* a mark waits for its turn */
}

uint64_t sim_predict(const struct sim_state *st, uint32_t stream, uint64_t index)
{
	return predict(st, stream, index, 0);
}
