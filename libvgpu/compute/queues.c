/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queues.c - see queues.h. Wall time is charged: these APIs only measure work if the program asks for it
 * before. Threads look that submit, or that wait for work, and the watcher. One thread calls the API at a
 * time, and never with the lock held: these calls may wait for other threads of the program.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "beside.h"
#include "charge.h"
#include "gate.h"
#include "own_time.h"
#include "queues.h"

/* Submissions on the card that the gate cannot stop any more, by the time that they take. */
#define QUEUE_NS 4000000u
/* After this time without a look, a look is late. */
#define LATE_NS 2000000u
/* If there are so many, work without a mark may be on the card. */
#define MARKS 1024
/* Submissions that may be on the card, however short they are. */
#define MOST_ON 256
/* Estimate of the time of a submission, before any has ended. */
#define UNKNOWN_NS 500000u
/* Between two looks work has ended in the middle, on the average; but the watcher looks often. */
#define ENDED_MOST_NS 250000u
#define EXIT_NAPS 5000

struct entry {
	struct vgpu_mark mark;
	uint32_t cards;
	uint64_t put_ns;
	bool held;
	/* Set by the thread that looks, without the lock; freed: held at the look before. */
	bool ended, freed;
};

/* It comes before the lock of a card's gate. */
static VGPU_PRIVATE pthread_mutex_t marks_lock = PTHREAD_MUTEX_INITIALIZER;
static VGPU_PRIVATE struct marked {
	unsigned entering;    /* submissions between the gate and their mark */
	uint64_t seen_ns;     /* something was on the card, or nothing is */
	uint64_t progress_ns; /* work ended, or a submission passed the gate because none did */
	uint64_t mean_ns;     /* of the submissions that have ended; 0: none */
} marked[VGPU_MAX_CARDS];
static struct entry entries[MARKS]; /* in the order of their submission */
static VGPU_PRIVATE unsigned n;
/* A thread is at calls of the API, for the entries that were there when it began: those stay. */
static VGPU_PRIVATE bool looking;
static struct vgpu_mark over[MARKS]; /* it drops these */
static bool closed;                  /* the program ends: no more such calls */

#define EACH_CARD(i, cards)                              \
	for (unsigned i = 0; i < vgpu_state.ncards; i++) \
		if ((cards) >> i & 1)

/* How many submissions are on the card, and not held by the program. */
static unsigned count(unsigned card)
{
	unsigned sum = marked[card].entering + (n == MARKS);

	for (unsigned i = 0; i < n; i++)
		sum += (entries[i].cards >> card & 1) && !entries[i].held;
	return sum;
}

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ------------------------------------------------------------------- what it costs */
/* How long a submission takes, as far as is known. */
static uint64_t mean(unsigned card)
{
	return marked[card].mean_ns ? marked[card].mean_ns : UNKNOWN_NS;
}

/* Work begins, if there is none. */
static void begin(unsigned card, uint64_t now)
{
	struct gate *g = &vgpu_gates[card];

	VGPU_LOCK(&g->lock);
	if (g->queues_since_ns)
		return;
	g->queues_since_ns = now;
	g->queues_own_ns = vgpu_gate_own(g, now);
	marked[card].seen_ns = now;
}

/* Charges up to that time; left: how many are still there. */
static void charge(unsigned card, uint64_t until, unsigned left)
{
	struct gate *g = &vgpu_gates[card];

	VGPU_LOCK(&g->lock);
	if (!g->queues_since_ns)
		return;
	vgpu_queues_charge(g, until);
	if (!left)
		g->queues_since_ns = 0;
	STORE(&vgpu_my((int)card)->inflight_ns, g->inflight_ns + left * mean(card));
}

/* Entries that have ended are about to be removed. unmarked: work without a mark may be on the card. */
static void settle(unsigned card, bool just_now, bool unmarked, uint64_t now)
{
	struct marked *c = &marked[card];
	unsigned left = c->entering + unmarked, ended = 0;
	uint64_t from = c->progress_ns, until = now,
		 half = now > c->seen_ns ? (now - c->seen_ns) / 2 : 0, took;

	for (unsigned i = 0; i < n; i++) {
		struct entry *e = &entries[i];

		if (!(e->cards >> card & 1))
			continue;
		if (e->freed) /* at some time since the last look */
			begin(card, c->seen_ns);
		left += !e->ended && !e->held;
		if (e->ended && !ended++ && e->put_ns > from)
			from = e->put_ns;
	}
	if (ended) {
		if (!just_now)
			until -= half < ENDED_MOST_NS ? half : ENDED_MOST_NS;
		took = until > from ? (until - from) / ended : 0;
		c->mean_ns = c->mean_ns ? (7 * c->mean_ns + took) / 8 : took;
		c->progress_ns = until;
	}
	charge(card, left ? now : until, left);
	c->seen_ns = now;
}

/* The exit handlers of this library are newer than the API libraries, so they run first. This takes no
 * lock: a signal may have interrupted the thread that has it. */
static void at_exit(void)
{
	STORE(&closed, true);
	for (int i = 0; i < EXIT_NAPS && LOAD(&looking); i++)
		nap(SLEEP_MIN_NS);
}

void *vgpu_marks_held_by(const void *queue, uint64_t handle, void (*keep)(void *held_by))
{
	VGPU_LOCK(&marks_lock);
	for (unsigned i = 0; i < n; i++) {
		const struct vgpu_mark *m = &entries[i].mark;

		if (!entries[i].held || (m->queue != queue && m->handle != handle))
			continue;
		keep(m->held_by);
		return m->held_by;
	}
	return NULL;
}

/* --------------------------------------------------------------------------- looks */
/* device: its work has ended; NULL: ask. Nothing has ended that is behind other work in its queue. */
static unsigned ask(unsigned i, const void *device)
{
	struct entry *e = &entries[i], *before = NULL;

	if (device)
		return e->ended = e->mark.device == device;
	for (unsigned k = i; k-- && !before;)
		if (entries[k].mark.queue == e->mark.queue)
			before = &entries[k];
	e->ended = (!before || before->ended) && e->mark.kind->ended(&e->mark);
	if (e->held && before && before->held && before->mark.held_by == e->mark.held_by)
		e->freed = e->ended || before->freed;
	else if (e->held)
		e->freed = e->ended || !e->mark.kind->held(&e->mark);
	return e->ended;
}

/* The caller has set looking. */
static void look(bool just_now, const void *device)
{
	unsigned kept = 0, ended = 0, asked = LOAD(&n);
	uint64_t now;

	for (unsigned i = 0; i < asked; i++)
		ended += ask(i, device);
	pthread_mutex_lock(&marks_lock);
	now = vgpu_now();
	for (unsigned i = 0; i < n; i++)
		entries[i].held &= !entries[i].freed;
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		settle(i, just_now, n - ended == MARKS, now);
	ended = 0;
	for (unsigned i = 0; i < n; i++) {
		entries[i].freed = false;
		if (entries[i].ended)
			over[ended++] = entries[i].mark;
		else
			entries[kept++] = entries[i];
	}
	STORE(&n, kept);
	pthread_mutex_unlock(&marks_lock);
	while (ended--)
		over[ended].kind->drop(&over[ended]);
	STORE(&looking, false);
}

bool vgpu_marks_look(bool just_now)
{
	if (likely(!LOAD(&n)) || EXCHANGE(&looking, true))
		return LOAD(&n) != 0;
	VGPU_NO_CANCEL;
	if (LOAD(&closed))
		STORE(&looking, false);
	else
		look(just_now, NULL);
	return LOAD(&n) != 0;
}

void vgpu_marks_forget(const void *device)
{
	while (EXCHANGE(&looking, true))
		nap(SLEEP_MIN_NS);
	look(true, device);
}

/* ------------------------------------------------------------------------- the gate */
uint32_t vgpu_queues_gated(uint32_t cards)
{
	for (unsigned i = 0; cards && i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		VGPU_LOCK(&g->lock);
		if (!g->on || !(g->schedule.gate & ~VGPU_GATE_MEASURE))
			cards &= ~(1u << i);
	}
	return cards;
}

/* The gate is closed for so long: a moment without any launches, or outside the job's window. */
static uint64_t closed_for(const struct vgpu_schedule *s, unsigned card, unsigned here,
			   uint64_t now)
{
	uint64_t start = now + here * mean(card);

	if (s->gate & VGPU_GATE_SHUT)
		return POLL_NS;
	if (!(s->gate & VGPU_GATE_WINDOW))
		return 0;
	STORE(&vgpu_state.cache.header->demand[card].wanted_ns, now);
	return vgpu_window_wait(s, now, start + mean(card) / 2, !here);
}

/* Nothing on the card ends: it may need this submission. If the budget is used up, such submissions
 * have the job's part of the time even so. With the lock of the gate. */
static bool goes_past(struct gate *g, const struct vgpu_budget *budget, uint64_t since,
		      uint64_t now)
{
	struct marked *c = &marked[g->card];

	if (now <= since + STUCK_NS || now <= c->progress_ns + STUCK_NS)
		return false;
	if ((g->schedule.gate & VGPU_GATE_BUDGET) && LOAD(&budget->balance_ns) <= 0) {
		if (now < g->past_ns)
			return false;
		vgpu_gate_past(g, mean((unsigned)g->card), now);
	}
	c->progress_ns = now;
	return true;
}

/* Whether a submission may go that waits since then; else *ns is when to look again. */
static bool may_go(unsigned card, unsigned here, uint64_t since, uint64_t now, uint64_t *ns)
{
	struct gate *g = &vgpu_gates[card];
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	bool full = n == MARKS || here >= MOST_ON;
	uint64_t in_flight, longest;
	uint32_t procs;
	VGPU_LOCK(&g->lock);

	*ns = closed_for(&g->schedule, card, here, now);
	if (!*ns && !(g->schedule.gate & VGPU_GATE_BUDGET))
		return true;
	in_flight = here * mean(card) + g->inflight_ns + vgpu_inflight_beside(g, now, &procs);
	vgpu_budget_refill(budget, now, g->schedule.cores, (int64_t)(BURST_NS + in_flight));
	vgpu_budget_credit(vgpu_state.grant, vgpu_state.cache.header, g->card, BURST_NS);
	if (!*ns) {
		*ns = POLL_NS;
		if (full || (here > 1 && (here + 1) * mean(card) > QUEUE_NS))
			vgpu_order_leave(budget, since); /* it waits for its own work now */
		else if (vgpu_order_first(budget, since, now))
			*ns = vgpu_budget_wait(budget, g->schedule.cores, 1);
	}
	if (!*ns || ((here || full) && goes_past(g, budget, since, now)))
		return true;
	longest = here ? POLL_NS : SLEEP_MAX_NS;
	*ns = *ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : *ns > longest ? longest : *ns;
	return false;
}

static void wait_at(unsigned card)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	uint64_t since = vgpu_now(), now, ns;
	bool due, go = false, waited = false;

	pthread_mutex_lock(&marks_lock);
	due = since > marked[card].seen_ns + REAP_NS;
	pthread_mutex_unlock(&marks_lock);
	while (!go) {
		if (waited || due)
			vgpu_marks_look(false);
		pthread_mutex_lock(&marks_lock);
		unsigned here = count(card);
		now = vgpu_now();
		/* The thread that looks is in a call of the API that takes long. */
		if (here && now > marked[card].seen_ns + LATE_NS)
			charge(card, now, here);
		go = may_go(card, here, since, now, &ns);
		pthread_mutex_unlock(&marks_lock);
		waited |= !go;
		if (!go)
			nap(ns);
	}
	vgpu_order_leave(budget, since);
	if (waited) {
		ADD(&budget->waits, 1);
		ADD(&budget->wait_ns, now - since);
	}
}

void vgpu_queue_wait(uint32_t cards)
{
	void (*again)(void) = LOAD(&vgpu_unwatched);

	if (likely(!cards))
		return;
	VGPU_NO_CANCEL;
	if (unlikely(again != NULL))
		again();
	EACH_CARD (i, cards)
		wait_at(i);
}

void vgpu_queue_begin(struct vgpu_submission *s, uint32_t cards)
{
	s->cancel = vgpu_no_cancel();
	s->cards = cards;
	VGPU_LOCK(&marks_lock);
	EACH_CARD (i, cards) {
		begin(i, vgpu_now());
		marked[i].entering++;
	}
}

void vgpu_queue_leave(const struct vgpu_submission *s, const struct vgpu_mark *mark)
{
	static bool registered;
	bool fits = true;
	uint64_t now;

	pthread_mutex_lock(&marks_lock);
	if (!registered)
		registered = atexit(at_exit) == 0;
	now = vgpu_now();
	if (mark && n == MARKS) {
		fits = false;
	} else if (mark) {
		entries[n] = (struct entry){.mark = *mark, s->cards, now, mark->held_by != NULL};
		STORE(&n, n + 1);
	}
	EACH_CARD (i, s->cards) {
		marked[i].entering--;
		if (count(i) < 2)
			marked[i].seen_ns = now;
		if (!count(i))
			charge(i, now, 0);
	}
	pthread_mutex_unlock(&marks_lock);
	if (!fits)
		mark->kind->drop(mark);
	vgpu_cancel_as(s->cancel);
}
