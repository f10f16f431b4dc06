/* SPDX-License-Identifier: Apache-2.0 */
/* queues.c - see queues.h. When a submission may go. */
#include "queues.h"
#include "beside.h"
#include "gate.h"

/* Submissions on the card that the gate cannot stop any more, by the time that they take. */
#define QUEUE_NS 4000000u
/* A thread that submits looks so often at most, and one that waits at the gate at least; then a look
 * is late. */
#define LOOK_NS 200000u
#define POLL_NS 250000u
#define LATE_NS 2000000u
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 2000000u
/* A submission waits this long for work that makes no progress. That work may wait for the submission. */
#define STUCK_NS 50000000u
/* Gates that delay submissions. */
#define CLOSED (VGPU_GATE_SHUT | VGPU_GATE_WINDOW)

uint32_t vgpu_queues_gated(uint32_t cards)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		VGPU_LOCK(&g->lock);
		if (!g->on || !(g->schedule.gate & (VGPU_GATE_BUDGET | CLOSED)))
			cards &= ~(1u << i);
	}
	return cards;
}

/* The gate is closed for so long: a moment without any launches, or outside the job's window. */
static uint64_t closed_for(const struct vgpu_schedule *s, unsigned card, unsigned here,
			   uint64_t now)
{
	uint64_t start = now + here * vgpu_marks_mean(card);

	if (s->gate & VGPU_GATE_SHUT)
		return POLL_NS;
	if (!(s->gate & VGPU_GATE_WINDOW))
		return 0;
	STORE(&vgpu_state.cache.header->demand[card].wanted_ns, now);
	return vgpu_window_wait(s, now, start + vgpu_marks_mean(card) / 2, !here);
}

/* Nothing on the card ends: it may need this submission. If the budget is used up, such submissions
 * have the job's part of the time even so. With the lock of the gate. */
static bool goes_past(struct gate *g, const struct vgpu_budget *budget, uint64_t since,
		      uint64_t now)
{
	struct vgpu_marked *c = &vgpu_marked[g->card];

	if (now <= since + STUCK_NS || now <= c->progress_ns + STUCK_NS)
		return false;
	if ((g->schedule.gate & VGPU_GATE_BUDGET) && LOAD(&budget->balance_ns) <= 0) {
		if (now < g->past_ns)
			return false;
		vgpu_gate_past(g, vgpu_marks_mean((unsigned)g->card), now);
	}
	c->progress_ns = now;
	return true;
}

/* Whether a submission may go that waits since then; else *ns is when to look again. */
static bool may_go(unsigned card, unsigned here, uint64_t since, uint64_t now, uint64_t *ns)
{
	struct gate *g = &vgpu_gates[card];
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	bool full = vgpu_marks_full(here);
	uint64_t in_flight;
	uint32_t procs;
	VGPU_LOCK(&g->lock);

	*ns = closed_for(&g->schedule, card, here, now);
	if (!*ns && !(g->schedule.gate & VGPU_GATE_BUDGET))
		return true;
	in_flight = here * vgpu_marks_mean(card) + g->inflight_ns +
		    vgpu_inflight_beside(g, now, &procs);
	vgpu_budget_refill(budget, now, g->schedule.cores, (int64_t)(BURST_NS + in_flight));
	if (!*ns) {
		*ns = POLL_NS;
		if (full || (here > 1 && (here + 1) * vgpu_marks_mean(card) > QUEUE_NS))
			vgpu_order_leave(budget, since); /* it waits for its own work now */
		else if (vgpu_order_first(budget, since, now))
			*ns = vgpu_budget_wait(budget, g->schedule.cores, 1);
	}
	if (!*ns || ((here || full) && goes_past(g, budget, since, now)))
		return true;
	if (here && *ns > POLL_NS)
		*ns = POLL_NS;
	*ns = *ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : *ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : *ns;
	return false;
}

static bool look_is_due(unsigned card)
{
	VGPU_LOCK(&vgpu_marks_lock);
	return vgpu_now() > vgpu_marked[card].seen_ns + LOOK_NS;
}

static void wait_at(unsigned card)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[card];
	uint64_t since = vgpu_now(), now, ns;
	bool go, waited = false;
	unsigned here;

	for (;;) {
		if (waited || look_is_due(card))
			vgpu_marks_look(false);
		pthread_mutex_lock(&vgpu_marks_lock);
		now = vgpu_now();
		here = vgpu_marks_on(card);
		/* The thread that looks is in a call of the API that takes long. */
		if (here && now > vgpu_marked[card].seen_ns + LATE_NS)
			vgpu_marks_charge(card, now, here);
		go = may_go(card, here, since, now, &ns);
		pthread_mutex_unlock(&vgpu_marks_lock);
		if (go)
			break;
		waited = true;
		vgpu_marks_nap(ns);
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
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		if (cards >> i & 1)
			wait_at(i);
}

void vgpu_queue_begin(struct vgpu_submission *s, uint32_t cards)
{
	s->cancel = vgpu_no_cancel();
	s->cards = cards;
	VGPU_LOCK(&vgpu_marks_lock);
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		if (!(cards >> i & 1))
			continue;
		vgpu_marks_begin(i, vgpu_now());
		vgpu_marked[i].entering++;
	}
}

void vgpu_queue_leave(const struct vgpu_submission *s, const struct vgpu_mark *mark)
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
