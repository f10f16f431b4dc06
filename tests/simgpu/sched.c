// SPDX-License-Identifier: Apache-2.0
/*
 * sched.c - what a card does with its time.
 *
 * A card runs one context at a time. A context keeps the card for its time
 * slice, or until it has nothing to run: it does not wait for the next launch.
 * A change of context costs switch_ns, in which nothing runs. The last of that
 * is the first of the new slice, so that short slices do less than their part.
 * A change of a slice on a card that works costs change_ns. Within a context
 * the kernel submitted first among the heads of its streams runs; running
 * kernels are preempted at the end of the slice and go on later. Marks (event
 * records, writes of values) take no time, but they too wait for their
 * context's turn, as they do on a real card, whose channels are fetched from
 * only while their group is on it.
 * Copies take their time beside all that.
 *
 * Nothing happens here by itself: sim_advance plays everything between the
 * card's clock and the time asked for, in order.
 */
#define _GNU_SOURCE
#include "model.h"

#include <time.h>

static struct sim_op *head_of(struct sim_state *st, uint32_t stream)
{
	struct sim_stream *s = &st->stream[stream];

	return s->done < s->tail ? sim_op_at(st, stream, s->done) : NULL;
}

/* The legacy default stream and the blocking streams of a context wait for
 * everything that was submitted to the other side before. */
static bool default_stream_allows(struct sim_state *st, const struct sim_stream *s, uint64_t seq)
{
	if (s->nonblocking)
		return true;
	for (uint32_t i = st->ctx[s->ctx].streams; i; i = st->stream[i - 1].next) {
		const struct sim_stream *other = &st->stream[i - 1];
		const struct sim_op *h;

		if (other == s || other->nonblocking || other->legacy == s->legacy)
			continue;
		h = head_of(st, i - 1);
		if (h && h->seq < seq)
			return false;
	}
	return true;
}

static bool startable(struct sim_state *st, uint32_t stream, const struct sim_op *o, uint64_t now)
{
	return o->state != SIM_QUEUED ||
	       (o->ready_ns <= now && default_stream_allows(st, &st->stream[stream], o->seq));
}

static void complete(struct sim_state *st, uint32_t stream, struct sim_op *o, uint64_t when)
{
	struct sim_stream *s = &st->stream[stream];

	o->done_ns = when;
	if (!o->cookie && s->taken == s->done)
		__atomic_store_n(&s->taken, s->done + 1, __ATOMIC_RELAXED);
	s->done++;
}

static bool dependency_met(const struct sim_state *st, const struct sim_op *o)
{
	const struct sim_stream *d = &st->stream[o->dep_stream];

	return d->gen != o->dep_gen || d->done > o->dep_index;
}

/* Finishes what needs no turn of the context at the head of one stream. */
static bool settle_stream(struct sim_state *st, uint32_t stream, uint64_t now)
{
	struct sim_op *o;
	bool moved = false;

	while ((o = head_of(st, stream)) != NULL && startable(st, stream, o, now)) {
		uint64_t when = now;

		if (o->kind == SIM_MARK) {
			return moved;
		} else if (o->kind == SIM_KERNEL) {
			if (o->state == SIM_QUEUED || o->left_ns)
				return moved;
		} else if (o->kind == SIM_COPY) {
			if (o->state == SIM_QUEUED) {
				o->state = SIM_STARTED;
				o->done_ns = now + o->left_ns;
			}
			if (o->done_ns > now)
				return moved;
			when = o->done_ns;
		} else if (o->kind == SIM_WAIT) {
			if (!dependency_met(st, o))
				return moved;
		} else if (o->kind == SIM_OWNER) {
			if (o->state == SIM_QUEUED)
				o->state = SIM_STARTED;
			if (o->state != SIM_FINISHED)
				return moved;
		}
		complete(st, stream, o, when);
		moved = true;
	}
	return moved;
}

static void settle(struct sim_state *st, uint32_t card, uint64_t now)
{
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t x = st->card[card].contexts; x; x = st->ctx[x - 1].next)
			for (uint32_t i = st->ctx[x - 1].streams; i; i = st->stream[i - 1].next)
				moved |= settle_stream(st, i - 1, now);
	}
}

uint32_t sim_runnable(struct sim_state *st, uint32_t ctx, uint64_t now)
{
	struct sim_ctx *x = &st->ctx[ctx];
	const struct sim_op *best = NULL;
	int best_priority = 0;
	uint32_t found = 0;

	for (uint32_t i = x->streams; i; i = st->stream[i - 1].next) {
		const struct sim_op *o = head_of(st, i - 1);
		int priority = st->stream[i - 1].priority;

		if (!o || (o->kind != SIM_KERNEL && o->kind != SIM_MARK) ||
		    !startable(st, i - 1, o, now))
			continue;
		if (o->kind == SIM_MARK)
			return i;
		if (i == x->run && o->state == SIM_STARTED)
			priority = INT32_MIN;
		/* a lower number is a higher priority */
		if (!best || priority < best_priority ||
		    (priority == best_priority && o->seq < best->seq)) {
			best = o;
			best_priority = priority;
			found = i;
		}
	}
	return found;
}

bool sim_busy(const struct sim_state *st, uint32_t ctx)
{
	for (uint32_t i = st->ctx[ctx].streams; i; i = st->stream[i - 1].next)
		if (st->stream[i - 1].done < st->stream[i - 1].tail)
			return true;
	return false;
}

/* The next runnable context after cur, round the list; cur itself comes last. */
static uint32_t next_context(struct sim_state *st, uint32_t card, uint32_t cur, uint64_t now)
{
	uint32_t first = st->card[card].contexts;
	uint32_t x = cur ? st->ctx[cur - 1].next : first;

	if (!first)
		return 0;
	for (int i = 0; i <= SIM_MAX_CTX; i++) {
		if (!x)
			x = first;
		if (x == cur ? sim_runnable_with(st, x - 1, now)
			     : (!cur || !sim_together(st, x - 1, cur - 1)) &&
				       sim_runnable(st, x - 1, now))
			return x;
		if (x == cur || (!cur && !st->ctx[x - 1].next))
			return 0;
		x = st->ctx[x - 1].next;
	}
	return 0;
}

/* Next moment at which something other than the running kernel changes. *inside: a copy within the
 * card runs until then. */
static uint64_t horizon(struct sim_state *st, uint32_t card, uint64_t now, bool *inside)
{
	uint64_t at = SIM_NEVER;

	*inside = false;
	for (uint32_t x = st->card[card].contexts; x; x = st->ctx[x - 1].next) {
		for (uint32_t i = st->ctx[x - 1].streams; i; i = st->stream[i - 1].next) {
			const struct sim_op *o = head_of(st, i - 1);

			if (!o)
				continue;
			if (o->kind == SIM_COPY && o->state == SIM_STARTED && o->done_ns < at)
				at = o->done_ns;
			*inside |= o->state == SIM_STARTED && (o->flags & SIM_OP_INSIDE);
			if (o->state == SIM_QUEUED && o->ready_ns > now && o->ready_ns < at)
				at = o->ready_ns;
		}
	}
	return at;
}

static void sample(struct sim_state *st, struct sim_card *c)
{
	struct timespec ts;
	uint64_t us;

	clock_gettime(CLOCK_REALTIME, &ts);
	us = (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
	us -= (sim_now() - c->sample_at_ns) / 1000;
	c->util_percent = (uint32_t)((c->busy_ns - c->sample_busy_ns) * 100 / SIM_SAMPLE_NS);
	c->sample_busy_ns = c->busy_ns;
	for (uint32_t i = c->contexts; i; i = st->ctx[i - 1].next) {
		struct sim_ctx *x = &st->ctx[i - 1];
		uint64_t did = x->busy_ns - x->sampled_ns;

		x->sampled_ns = x->busy_ns;
		if (!did)
			continue;
		c->sample[c->nsamples % SIM_SAMPLES] =
			(struct sim_sample){us, st->proc[x->proc].pid,
					    (uint16_t)((did * 100 + SIM_SAMPLE_NS / 2) /
						       SIM_SAMPLE_NS),
					    (uint16_t)x->proc};
		c->nsamples++;
	}
	c->sample_at_ns += SIM_SAMPLE_NS;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* A card writes one record for each change, and none while a context stays on it,
 * busy or not. */
void sim_note(struct sim_state *st, uint32_t ctx, bool came)
{
	const struct sim_ctx *x = &st->ctx[ctx];
	const struct sim_proc *p = &st->proc[x->proc];
	struct sim_card *c = &st->card[x->card];

	*sim_switch_at(st, x->card, c->records) =
		(struct sim_switch){.at_ns = c->now_ns + st->since_1970,
				    .start_time = p->start_time,
				    .pid = p->pid,
				    .proc = (uint16_t)x->proc,
				    .came = came};
	c->records++;
}

static void arrive(struct sim_state *st, struct sim_card *c)
{
	c->came = 1;
	sim_note(st, c->cur - 1, true);
}

static void begin_slice(struct sim_state *st, struct sim_card *c, uint64_t lost_ns)
{
	uint64_t all = sim_slice_ns(st, c->cur - 1);

	/* one that is shorter than what is lost gets on all the same */
	c->slice_left_ns = all > lost_ns ? all - lost_ns : 1000;
}

/* Puts a context on the card if there is one to run; false: the card is idle. */
static bool choose(struct sim_state *st, struct sim_card *c, uint32_t card)
{
	uint32_t next = c->cur;

	if (!c->cur || !c->slice_left_ns || !sim_runnable_with(st, c->cur - 1, c->now_ns))
		next = next_context(st, card, c->cur, c->now_ns);
	if (!next)
		return false;
	if (next != c->cur) {
		/* one whose way to the card is not over leaves no record */
		if (c->came)
			sim_note(st, c->cur - 1, false);
		c->came = 0;
		/* a card that has just started, or whose context has just died, pays nothing */
		c->switch_left_ns = c->cur ? c->conf.switch_ns : 0;
		c->switches++;
		st->ctx[next - 1].turns++;
		c->cur = next;
		begin_slice(st, c, c->switch_left_ns ? c->conf.switch_slice_ns : 0);
		if (!c->switch_left_ns || !c->conf.switch_away_ns)
			arrive(st, c);
	} else if (!c->slice_left_ns) {
		begin_slice(st, c, 0);
	}
	return true;
}

/* The part of a switch up to dt, or up to the moment of its record. */
static void pass_switch(struct sim_state *st, struct sim_card *c, uint64_t dt)
{
	uint64_t on_card = c->conf.switch_ns - c->conf.switch_away_ns;

	dt = min_u64(dt, c->switch_left_ns - (c->came ? 0 : on_card));
	c->switch_left_ns -= dt;
	c->busy_ns += dt;
	c->now_ns += dt;
	if (!c->came && c->switch_left_ns == on_card)
		arrive(st, c);
}

void sim_work(struct sim_state *st, uint32_t stream, struct sim_op *o, uint64_t ns, uint64_t at)
{
	struct sim_ctx *x = &st->ctx[st->stream[stream].ctx];

	o->state = SIM_STARTED;
	o->left_ns -= ns;
	x->busy_ns += ns;
	if (!(o->flags & SIM_OP_SPIN))
		st->stream[stream].exec_ns += ns;
	if (o->left_ns)
		return;
	x->run = 0;
	complete(st, stream, o, at);
}

/* Plays the card up to `end` or to the next change, whichever is first. */
static void step(struct sim_state *st, struct sim_card *c, uint32_t card, uint64_t end)
{
	struct sim_ctx *x;
	struct sim_op *o;
	uint32_t stream;
	uint64_t dt;

	dt = end - c->now_ns;
	if (c->change_left_ns) {
		dt = min_u64(dt, c->change_left_ns);
		c->change_left_ns -= dt;
		c->busy_ns += dt;
		c->now_ns += dt;
		return;
	}
	if (!choose(st, c, card)) {
		c->now_ns = end;
		return;
	}
	if (c->switch_left_ns) {
		pass_switch(st, c, dt);
		return;
	}
	x = &st->ctx[c->cur - 1];
	stream = sim_runnable_with(st, c->cur - 1, c->now_ns) - 1;
	o = head_of(st, stream);
	if (o->kind == SIM_MARK) {
		complete(st, stream, o, c->now_ns);
		return;
	}
	dt = min_u64(dt, c->slice_left_ns);
	if (x->server) {
		dt = sim_run_together(st, c->cur - 1, c->now_ns, dt);
	} else {
		x->run = stream + 1;
		dt = min_u64(dt, o->left_ns);
		sim_work(st, stream, o, dt, c->now_ns + dt);
	}
	c->slice_left_ns -= dt;
	c->busy_ns += dt;
	c->work_ns += dt;
	c->now_ns += dt;
}

/* At the very moment asked for: marks of the context that is on the card. */
static void finish_marks(struct sim_state *st, struct sim_card *c, uint32_t card)
{
	uint32_t i;

	settle(st, card, c->now_ns);
	while (c->cur && !c->switch_left_ns && !c->change_left_ns &&
	       (i = sim_runnable_with(st, c->cur - 1, c->now_ns)) != 0) {
		struct sim_op *o = head_of(st, i - 1);

		if (o->kind != SIM_MARK)
			return;
		complete(st, i - 1, o, c->now_ns);
		settle(st, card, c->now_ns);
	}
}

void sim_set_slice(struct sim_state *st, uint32_t ctx, uint64_t us)
{
	struct sim_ctx *x = &st->ctx[ctx];
	struct sim_card *c = &st->card[x->card];

	if (x->slice_us == us)
		return;
	x->slice_us = us;
	if (c->cur && sim_runnable(st, c->cur - 1, c->now_ns))
		c->change_left_ns += c->conf.change_ns;
}

static bool any_work(const struct sim_state *st, uint32_t card)
{
	for (uint32_t i = st->card[card].contexts; i; i = st->ctx[i - 1].next)
		if (sim_busy(st, i - 1))
			return true;
	return false;
}

void sim_advance(struct sim_state *st, uint32_t card, uint64_t until)
{
	struct sim_card *c = &st->card[card];

	if (until > c->now_ns + 10 * SIM_SAMPLE_NS && !any_work(st, card)) {
		/* nobody looked for long and nothing was queued: skip the empty time */
		c->now_ns = until;
		c->sample_at_ns = until + SIM_SAMPLE_NS;
		c->sample_busy_ns = c->busy_ns;
		c->util_percent = 0;
		for (uint32_t i = c->contexts; i; i = st->ctx[i - 1].next)
			st->ctx[i - 1].sampled_ns = st->ctx[i - 1].busy_ns;
	}
	while (c->now_ns < until) {
		uint64_t end, from = c->now_ns, worked = c->work_ns;
		bool inside;

		settle(st, card, c->now_ns);
		end = min_u64(until,
			      min_u64(horizon(st, card, c->now_ns, &inside), c->sample_at_ns));
		if (end > c->now_ns)
			step(st, c, card, end);
		c->used_ns += inside ? c->now_ns - from : c->work_ns - worked;
		if (c->now_ns >= c->sample_at_ns)
			sample(st, c);
	}
	finish_marks(st, c, card);
}

void sim_advance_all(struct sim_state *st)
{
	uint64_t now = sim_now();

	sim_reap(st, false);
	for (uint32_t i = 0; i < st->ncards; i++)
		sim_advance(st, i, now);
}
