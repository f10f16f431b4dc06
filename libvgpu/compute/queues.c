/* SPDX-License-Identifier: Apache-2.0 */
/* queues.c - see queues.h. When a submission may go. */
#include "queues.h"
#include "beside.h"
#include "gate.h"

/* Submissions on the card that the gate cannot stop any more, by the time that they take. */
#define QUEUE_NS 4000000u
/* Who submits looks so often at most, who waits at the gate so often at least; then a look is late. */
#define LOOK_NS 200000u
#define POLL_NS 250000u
#define LATE_NS 2000000u
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 2000000u
/* A submission waits this long for work that makes no progress, for it may be what that work waits
 * for. Each time, twice as long; and where work is longer, for as long as its share is due. */
#define STUCK_NS 50000000u
#define STUCK_TWICE 3
/* Gates that delay submissions. */
#define CLOSED (VGPU_GATE_SHUT | VGPU_GATE_TURN | VGPU_GATE_WINDOW)
#define GATED (VGPU_GATE_BUDGET | CLOSED)

uint32_t vgpu_queues_gated(uint32_t mask)
{
	uint32_t gated = 0;

	if (likely(!__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED)))
		return 0;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		if (!(mask >> i & 1) || !__atomic_load_n(&g->on, __ATOMIC_RELAXED))
			continue;
		pthread_mutex_lock(&g->lock);
		gated |= (g->schedule.gate & GATED ? 1u : 0u) << i;
		pthread_mutex_unlock(&g->lock);
	}
	return gated;
}

static bool is_stuck(const struct vgpu_marked *c, uint32_t cores, uint64_t began, uint64_t now)
{
	uint64_t since = c->progress_ns > began ? c->progress_ns : began;
	uint64_t most = (uint64_t)STUCK_NS << (c->stuck < STUCK_TWICE ? c->stuck : STUCK_TWICE);
	uint64_t due = c->longest_ns * 100 / (cores ? cores : 1);

	return now > since && now - since > (most > due ? most : due);
}

/* What the gate knows. */
struct known {
	struct vgpu_schedule s;
	bool idle; /* the job has nothing on the card but this process's submissions */
};

static struct known ask_gate(unsigned card, uint64_t now)
{
	struct gate *g = &vgpu_gates[card];
	struct known k;
	uint32_t procs;

	pthread_mutex_lock(&g->lock);
	k = (struct known){g->schedule,
			   !g->inflight_ns && vgpu_inflight_beside(g, now, &procs) == 0};
	pthread_mutex_unlock(&g->lock);
	return k;
}

/* The gate is closed for so long: a moment without any launches, or outside the job's window. */
static uint64_t closed_for(const struct vgpu_schedule *s, unsigned card, unsigned here,
			   uint64_t now)
{
	uint64_t start = now + here * vgpu_marks_mean(card);

	if (s->gate & VGPU_GATE_SHUT)
		return POLL_NS;
	if (s->gate & VGPU_GATE_WINDOW)
		return vgpu_window_wait(s, now, start + vgpu_marks_mean(card) / 2, !here);
	if (!(s->gate & VGPU_GATE_TURN))
		return 0;
	__atomic_store_n(&vgpu_state.cache.header->turn[card].wanted_ns, now, __ATOMIC_SEQ_CST);
	return vgpu_turn_wait(s, now, start);
}

/* Whether a submission may go that waits since then; else *ns is when to look again. */
static bool may_go(unsigned card, uint64_t since, uint64_t began, uint64_t now, uint64_t *ns)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	struct vgpu_marked *c = &vgpu_marked[card];
	const struct known k = ask_gate(card, now);
	unsigned here = vgpu_marks_on(card);
	uint64_t closed = closed_for(&k.s, card, here, now);

	if (!closed && !(k.s.gate & VGPU_GATE_BUDGET))
		return true;
	/* Who looks is in a call of the API that takes long. */
	if (here && now > c->seen_ns + LATE_NS)
		vgpu_marks_charge(card, now, here);
	vgpu_budget_refill(budget, now, k.s.cores, k.idle && !here, BURST_NS);
	*ns = POLL_NS;
	if (closed) {
		*ns = closed;
	} else if (vgpu_marks_full() ||
		   (here > 1 && (here + 1) * vgpu_marks_mean(card) > QUEUE_NS)) {
		/* It waits for its own work now. */
		vgpu_order_leave(budget, since);
	} else if (vgpu_order_first(budget, since, now)) {
		*ns = vgpu_budget_wait(budget, k.s.cores, 1);
		if (!*ns)
			return true;
	}
	if (began && (here || vgpu_marks_full()) && is_stuck(c, k.s.cores, began, now)) {
		c->stuck++;
		return true;
	}
	if (here && *ns > POLL_NS)
		*ns = POLL_NS;
	*ns = *ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : *ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : *ns;
	return false;
}

static bool look_is_due(unsigned card, uint64_t now)
{
	uint64_t seen;

	pthread_mutex_lock(&vgpu_marks_lock);
	seen = vgpu_marked[card].seen_ns;
	pthread_mutex_unlock(&vgpu_marks_lock);
	return now > seen && now - seen > LOOK_NS;
}

static void wait_at(unsigned card)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	uint64_t began = 0, now = vgpu_now(), since = now, ns = 0;
	bool go;

	for (;; now = vgpu_now()) {
		if (began || look_is_due(card, now))
			vgpu_marks_look(false);
		pthread_mutex_lock(&vgpu_marks_lock);
		now = vgpu_now();
		go = may_go(card, since, began, now, &ns);
		pthread_mutex_unlock(&vgpu_marks_lock);
		if (go)
			break;
		if (!began) {
			began = now;
			__atomic_add_fetch(&budget->waits, 1, __ATOMIC_RELAXED);
		}
		vgpu_marks_nap(ns);
	}
	vgpu_order_leave(budget, since);
	if (began)
		__atomic_add_fetch(&budget->wait_ns, now - began, __ATOMIC_RELAXED);
}

void vgpu_queue_wait(uint32_t mask)
{
	void (*again)(void) = __atomic_load_n(&vgpu_unwatched, __ATOMIC_RELAXED);
	int cancel = vgpu_no_cancel();

	if (unlikely(again != NULL))
		again();
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		if (mask >> i & 1)
			wait_at(i);
	vgpu_cancel_as(cancel);
}

void vgpu_queue_begin(struct vgpu_submission *s, uint32_t mask)
{
	s->cancel = vgpu_no_cancel();
	vgpu_marks_end_with_program();
	s->cards = mask;
	pthread_mutex_lock(&vgpu_marks_lock);
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		if (!(mask >> i & 1))
			continue;
		vgpu_marks_begin(i, vgpu_now());
		vgpu_marked[i].entering++;
	}
	pthread_mutex_unlock(&vgpu_marks_lock);
}

void vgpu_queue_enter(struct vgpu_submission *s, uint32_t mask)
{
	vgpu_queue_wait(mask);
	vgpu_queue_begin(s, mask);
}

void vgpu_queue_leave(const struct vgpu_submission *s, struct vgpu_mark *mark)
{
	bool fits = true;
	uint64_t now;

	pthread_mutex_lock(&vgpu_marks_lock);
	now = vgpu_now();
	if (mark)
		fits = vgpu_marks_put(mark, s->cards, now);
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		if (!(s->cards >> i & 1))
			continue;
		vgpu_marked[i].entering--;
		if (vgpu_marks_on(i) < 2)
			vgpu_marked[i].seen_ns = now;
		if (!vgpu_marks_on(i))
			vgpu_marks_charge(i, now, 0);
	}
	pthread_mutex_unlock(&vgpu_marks_lock);
	if (!fits)
		mark->kind->drop(mark);
	vgpu_cancel_as(s->cancel);
}
