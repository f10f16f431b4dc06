/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.c - see queues.h. Wall time is charged: these APIs only measure work if the program asks for it
 * before. Threads look that submit, or that wait for work, and the watcher. One thread calls the API
 * at a time, and never with the lock held: these calls may wait for other threads of the program.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "charge.h"
#include "gate.h"
#include "own_time.h"
#include "queues.h"

#define MARKS 1024
/* Submissions that may be on the card, however short they are. */
#define MOST_ON 256
/* What a submission takes, before any has ended. */
#define UNKNOWN_NS 500000u
/* Between two looks work has ended in the middle, on the average; but the watcher looks often. */
#define ENDED_MOST_NS 250000u
#define NAP_NS 20000u
#define EXIT_NAPS 5000

struct entry {
	struct vgpu_mark mark;
	uint32_t cards;
	uint64_t put_ns;
	bool held;
	/* Set by the thread that looks, without the lock; freed: held at the look before. */
	bool ended, freed;
};

VGPU_PRIVATE pthread_mutex_t vgpu_marks_lock = PTHREAD_MUTEX_INITIALIZER;
VGPU_PRIVATE struct vgpu_marked vgpu_marked[VGPU_MAX_CARDS];
static struct entry entries[MARKS]; /* in the order of their submission */
static VGPU_PRIVATE unsigned n;
/* A thread is at calls of the API, for the entries that were there when it began: those stay. */
static VGPU_PRIVATE bool looking;
static struct vgpu_mark over[MARKS]; /* it drops these */
static bool closed;                  /* the program ends: no more such calls */

static bool on(const struct entry *e, unsigned card)
{
	return e->cards >> card & 1;
}

unsigned vgpu_marks_on(unsigned card)
{
	unsigned sum = vgpu_marked[card].entering + vgpu_marked[card].unmarked;

	for (unsigned i = 0; i < n; i++)
		sum += on(&entries[i], card) && !entries[i].held;
	return sum;
}

bool vgpu_marks_full(unsigned on_card)
{
	return n >= MARKS || on_card >= MOST_ON;
}

void vgpu_marks_nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ------------------------------------------------------------------- what it costs */
uint64_t vgpu_marks_mean(unsigned card)
{
	return vgpu_marked[card].mean_ns ? vgpu_marked[card].mean_ns : UNKNOWN_NS;
}

void vgpu_marks_begin(unsigned card, uint64_t now)
{
	struct gate *g = &vgpu_gates[card];

	VGPU_LOCK(&g->lock);
	if (g->queues_since_ns)
		return;
	g->queues_since_ns = now;
	g->queues_own_ns = vgpu_gate_own(g, now);
	vgpu_marked[card].seen_ns = now;
}

void vgpu_marks_charge(unsigned card, uint64_t until, unsigned left)
{
	struct gate *g = &vgpu_gates[card];

	VGPU_LOCK(&g->lock);
	if (!g->queues_since_ns)
		return;
	vgpu_queues_charge(g, until);
	if (!left)
		g->queues_since_ns = 0;
	STORE(&vgpu_my((int)card)->inflight_ns, g->inflight_ns + left * vgpu_marks_mean(card));
}

static void learn(struct vgpu_marked *c, uint64_t first_ns, unsigned ended, uint64_t until)
{
	uint64_t from = first_ns > c->progress_ns ? first_ns : c->progress_ns;
	uint64_t took = until > from ? (until - from) / ended : 0;

	c->mean_ns = c->mean_ns ? (7 * c->mean_ns + took) / 8 : took;
	c->progress_ns = until;
}

/* The work of entries that have ended, and are about to be removed. */
static void settle(unsigned card, bool just_now, uint64_t now)
{
	struct vgpu_marked *c = &vgpu_marked[card];
	unsigned left = 0, marks = 0, ended = 0;
	uint64_t first_ns = 0, until = now, half;

	for (unsigned i = 0; i < n; i++) {
		struct entry *e = &entries[i];

		if (!on(e, card))
			continue;
		if (e->freed) /* at some time since the last look */
			vgpu_marks_begin(card, c->seen_ns);
		marks += !e->ended;
		left += !e->ended && !e->held;
		if (e->ended && !ended++)
			first_ns = e->put_ns;
	}
	if (!marks)
		c->unmarked = 0;
	left += c->entering + c->unmarked;
	half = now > c->seen_ns ? (now - c->seen_ns) / 2 : 0;
	if (ended && !just_now)
		until = now - (half < ENDED_MOST_NS ? half : ENDED_MOST_NS);
	if (ended)
		learn(c, first_ns, ended, until);
	vgpu_marks_charge(card, left ? now : until, left);
	c->seen_ns = now;
}

/* The libraries of the APIs end after this one's handlers, which are newer. No lock is taken: a
 * signal may have come to the thread that has it. */
static void at_exit(void)
{
	STORE(&closed, true);
	for (int i = 0; i < EXIT_NAPS && LOAD(&looking); i++)
		vgpu_marks_nap(NAP_NS);
}

bool vgpu_marks_put(const struct vgpu_mark *mark, uint32_t cards, uint64_t now)
{
	static bool registered;

	if (!registered)
		registered = atexit(at_exit) == 0;
	if (n < MARKS) {
		entries[n] = (struct entry){*mark, cards, now, mark->held_by != NULL, false, false};
		STORE(&n, n + 1);
		return true;
	}
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		vgpu_marked[i].unmarked += cards >> i & 1;
	return false;
}

void *vgpu_marks_held_by(const void *queue, uint64_t handle, void (*keep)(void *held_by))
{
	VGPU_LOCK(&vgpu_marks_lock);
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
/* Nothing has ended that is behind other work in its queue. */
static void ask(unsigned i)
{
	struct entry *e = &entries[i], *before = NULL;

	for (unsigned k = i; k-- && !before;)
		if (entries[k].mark.queue == e->mark.queue)
			before = &entries[k];
	e->ended = (!before || before->ended) && e->mark.kind->ended(&e->mark);
	if (!e->held)
		return;
	if (before && before->held && before->mark.held_by == e->mark.held_by)
		e->freed = e->ended || before->freed;
	else
		e->freed = e->ended || !e->mark.kind->held(&e->mark);
}

/* device: its work has ended; NULL: ask. Returns how many marks have ended. */
static unsigned remove_ended(bool just_now, const void *device)
{
	unsigned kept = 0, ended = 0;
	uint64_t now;

	for (unsigned i = 0, count = LOAD(&n); i < count; i++) {
		if (device)
			entries[i].ended = entries[i].mark.device == device;
		else
			ask(i);
	}
	VGPU_LOCK(&vgpu_marks_lock);
	now = vgpu_now();
	for (unsigned i = 0; i < n; i++)
		entries[i].held &= !entries[i].freed;
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		settle(i, just_now, now);
	for (unsigned i = 0; i < n; i++) {
		entries[i].freed = false;
		if (entries[i].ended)
			over[ended++] = entries[i].mark;
		else
			entries[kept++] = entries[i];
	}
	STORE(&n, kept);
	return ended;
}

/* The caller has set looking. */
static void look(bool just_now, const void *device)
{
	for (unsigned i = 0, ended = remove_ended(just_now, device); i < ended; i++)
		over[i].kind->drop(&over[i]);
	STORE(&looking, false);
}

void vgpu_marks_look(bool just_now)
{
	if (likely(!LOAD(&n)) || EXCHANGE(&looking, true))
		return;
	VGPU_NO_CANCEL;
	if (LOAD(&closed))
		STORE(&looking, false);
	else
		look(just_now, NULL);
}

bool vgpu_marks_tick(void)
{
	vgpu_marks_look(false);
	return LOAD(&n) != 0;
}

void vgpu_marks_forget(const void *device)
{
	while (EXCHANGE(&looking, true))
		vgpu_marks_nap(NAP_NS);
	look(true, device);
}
