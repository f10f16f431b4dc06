/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.c - see marks.h. What is charged is wall time: these APIs tell no times without being
 * asked beforehand. Who looks is who submits, who waits for work, and the watcher; the calls of the
 * API are made by one of them at a time, and never with the lock held: they may wait for other
 * threads of the program.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "charge.h"
#include "gate.h"
#include "marks.h"
#include "own_time.h"

#define MARKS 256
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
	bool held, freed, ended; /* when last looked; freed: held at the look before */
};

pthread_mutex_t vgpu_marks_lock = PTHREAD_MUTEX_INITIALIZER;
struct vgpu_marked vgpu_marked[VGPU_MAX_CARDS];
static struct entry entries[MARKS]; /* in the order of their submission */
static unsigned n;
/* A thread is at calls of the API, for the entries that it has seen: those stay. */
static bool looking;
static struct entry seen[MARKS];
static unsigned nseen;
static bool closed; /* the program ends: no more such calls */

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

bool vgpu_marks_full(void)
{
	return n >= MARKS;
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

	pthread_mutex_lock(&g->lock);
	if (!g->queues_since_ns) {
		g->queues_since_ns = now;
		g->queues_own_ns = vgpu_gate_own(g, now);
		vgpu_marked[card].seen_ns = now;
	}
	pthread_mutex_unlock(&g->lock);
}

void vgpu_marks_charge(unsigned card, uint64_t until, unsigned left)
{
	uint64_t *inflight = &vgpu_my((int)card)->inflight_ns;
	struct gate *g = &vgpu_gates[card];

	pthread_mutex_lock(&g->lock);
	if (g->queues_since_ns) {
		vgpu_queues_charge(g, until);
		if (!left)
			g->queues_since_ns = 0;
		__atomic_store_n(inflight, g->inflight_ns + left * vgpu_marks_mean(card),
				 __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&g->lock);
}

static void learn(struct vgpu_marked *c, uint64_t first_ns, unsigned ended, uint64_t until)
{
	uint64_t from = first_ns > c->progress_ns ? first_ns : c->progress_ns;
	uint64_t took = until > from ? until - from : 0;

	c->mean_ns = c->mean_ns ? (7 * c->mean_ns + took / ended) / 8 : took / ended;
	c->longest_ns -= c->longest_ns / 8;
	if (c->longest_ns < took)
		c->longest_ns = took;
	c->progress_ns = until;
	c->stuck = 0;
}

/* What of the entries has ended is about to be removed. */
static void settle(unsigned card, bool just_now, uint64_t now)
{
	struct vgpu_marked *c = &vgpu_marked[card];
	unsigned left = c->entering + c->unmarked, marks = 0, ended = 0;
	uint64_t first_ns = 0, until = now, half;
	bool freed = false;

	for (unsigned i = 0; i < n; i++) {
		const struct entry *e = &entries[i];

		if (!on(e, card))
			continue;
		marks += !e->ended;
		freed |= e->freed;
		left += !e->ended && !e->held;
		if (e->ended && !ended++)
			first_ns = e->put_ns;
	}
	if (!marks) {
		left -= c->unmarked;
		c->unmarked = 0;
	}
	if (freed) /* nobody knows when, since the last look */
		vgpu_marks_begin(card, c->seen_ns);
	half = now > c->seen_ns ? (now - c->seen_ns) / 2 : 0;
	if (ended && !just_now)
		until = now - (half < ENDED_MOST_NS ? half : ENDED_MOST_NS);
	if (ended)
		learn(c, first_ns, ended, until);
	vgpu_marks_charge(card, left ? now : until, left);
	c->seen_ns = now;
}

/* The last of what is held in a queue tells when all of it has ended. */
static bool takes_place(struct vgpu_mark *mark, uint32_t cards)
{
	unsigned first = looking ? nseen : 0;

	for (unsigned i = n; mark->held_by && i-- > first;) {
		struct vgpu_mark before = entries[i].mark;

		if (before.queue != mark->queue)
			continue;
		if (!before.ours || before.held_by != mark->held_by || !entries[i].held ||
		    entries[i].cards != cards)
			return false;
		entries[i].mark = *mark;
		*mark = before;
		return true;
	}
	return false;
}

bool vgpu_marks_put(struct vgpu_mark *mark, uint32_t cards, uint64_t now)
{
	if (takes_place(mark, cards))
		return false;
	if (n < MARKS) {
		entries[n] = (struct entry){*mark, cards, now, mark->held_by != NULL, false, false};
		__atomic_store_n(&n, n + 1, __ATOMIC_RELAXED);
		return true;
	}
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		vgpu_marked[i].unmarked += cards >> i & 1;
	return false;
}

void *vgpu_marks_held_by(const void *queue, uint64_t handle, void (*keep)(void *held_by))
{
	void *held_by = NULL;

	pthread_mutex_lock(&vgpu_marks_lock);
	for (unsigned i = 0; i < n && !held_by; i++)
		if (entries[i].held &&
		    (entries[i].mark.queue == queue || entries[i].mark.handle == handle))
			held_by = entries[i].mark.held_by;
	if (held_by)
		keep(held_by);
	pthread_mutex_unlock(&vgpu_marks_lock);
	return held_by;
}

/* --------------------------------------------------------------------------- looks */
/* What is before it in its queue has not ended: nor has this. */
static bool behind_another(unsigned i)
{
	for (unsigned k = i; k--;)
		if (seen[k].mark.queue == seen[i].mark.queue)
			return !seen[k].ended;
	return false;
}

static void ask(unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct entry *e = &seen[i];

		e->ended = !behind_another(i) && e->mark.kind->ended(&e->mark);
		e->freed = e->held && (e->ended || !e->mark.kind->held(&e->mark));
		if (e->freed)
			e->held = false;
	}
}

static void remove_ended(void)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < n; i++) {
		entries[i].freed = false;
		if (!entries[i].ended)
			entries[kept++] = entries[i];
	}
	__atomic_store_n(&n, kept, __ATOMIC_RELAXED);
}

/* The look is over. */
static void drop_ended(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (seen[i].ended)
			seen[i].mark.kind->drop(&seen[i].mark);
	__atomic_store_n(&looking, false, __ATOMIC_RELEASE);
}

/* True: the program ends. */
static bool begin_look(void)
{
	__atomic_store_n(&looking, true, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&closed, __ATOMIC_SEQ_CST))
		return false;
	__atomic_store_n(&looking, false, __ATOMIC_SEQ_CST);
	return true;
}

void vgpu_marks_look(bool just_now)
{
	unsigned count;
	uint64_t now;
	int cancel;

	if (likely(!__atomic_load_n(&n, __ATOMIC_RELAXED)))
		return;
	pthread_mutex_lock(&vgpu_marks_lock);
	count = n;
	if (__atomic_load_n(&looking, __ATOMIC_ACQUIRE) || !count || begin_look()) {
		pthread_mutex_unlock(&vgpu_marks_lock);
		return;
	}
	cancel = vgpu_no_cancel();
	memcpy(seen, entries, count * sizeof *seen);
	nseen = count;
	pthread_mutex_unlock(&vgpu_marks_lock);
	ask(count);
	pthread_mutex_lock(&vgpu_marks_lock);
	now = vgpu_now();
	memcpy(entries, seen, count * sizeof *seen);
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		settle(i, just_now, now);
	remove_ended();
	pthread_mutex_unlock(&vgpu_marks_lock);
	drop_ended(count);
	vgpu_cancel_as(cancel);
}

bool vgpu_marks_tick(void)
{
	if (likely(!__atomic_load_n(&n, __ATOMIC_RELAXED)))
		return false;
	vgpu_marks_look(false);
	return true;
}

/* With the lock, which it gives away for a while. */
static void wait_for_looks(void)
{
	while (__atomic_load_n(&looking, __ATOMIC_ACQUIRE)) {
		pthread_mutex_unlock(&vgpu_marks_lock);
		vgpu_marks_nap(NAP_NS);
		pthread_mutex_lock(&vgpu_marks_lock);
	}
}

/* The libraries of the APIs end after this one's handlers, which are newer. No lock is taken: a
 * signal may have come to the thread that has it. */
static void at_exit(void)
{
	__atomic_store_n(&closed, true, __ATOMIC_SEQ_CST);
	for (int i = 0; i < EXIT_NAPS && __atomic_load_n(&looking, __ATOMIC_SEQ_CST); i++)
		vgpu_marks_nap(NAP_NS);
}

static void register_exit(void)
{
	atexit(at_exit);
}

void vgpu_marks_end_with_program(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_exit);
}

void vgpu_marks_forget(const void *device)
{
	unsigned count;

	pthread_mutex_lock(&vgpu_marks_lock);
	wait_for_looks();
	__atomic_store_n(&looking, true, __ATOMIC_RELAXED);
	count = n;
	for (unsigned i = 0; i < count; i++)
		entries[i].ended = entries[i].mark.device == device;
	memcpy(seen, entries, count * sizeof *seen);
	for (unsigned i = 0; i < vgpu_state.ncards && count; i++)
		settle(i, true, vgpu_now());
	remove_ended();
	pthread_mutex_unlock(&vgpu_marks_lock);
	drop_ended(count);
}

void vgpu_marks_in_child(void)
{
	pthread_mutex_init(&vgpu_marks_lock, NULL); /* whoever held it is not here */
	memset(vgpu_marked, 0, sizeof vgpu_marked);
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++)
		vgpu_gates[i].queues_since_ns = 0;
	n = 0;
	looking = false;
}
