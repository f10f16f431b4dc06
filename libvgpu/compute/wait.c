/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - see wait.h. When a launch may go: by budget, by window. */
#include "wait.h"
#include "batch.h"
#include "beside.h"
#include "charge.h"
#include "event.h"
#include "lane.h"
#include "own_time.h"
#include "reap.h"

/* Up to this length a second kernel is let in behind the running one. */
#define PAIR_NS 5000000u
#define SAVE_UP_NS 5000000
#define SAVE_UP_MOST_NS 1500000
#define WINDOW_BURST_NS 60000000
/* Work on the card that does not progress may wait for a launch. The launch waits this long, and ten
 * times its own estimate, but never longer than the maximum. */
#define PAST_NS 1000000u
#define PAST_MOST_NS 500000000u
/* A launch that waits for its window looks again this often: windows move. */
#define WINDOW_POLL_NS 1000000u
/* Weighs a launch in the typical length; so long a time is remembered. */
#define TYPICAL_NS 20000000u

static bool in_windows(const struct gate *g)
{
	return g->schedule.gate & VGPU_GATE_WINDOW;
}

/* The middle of the work counts: of what is launched last, half of it runs over. */
static uint64_t window_wait(const struct gate *g, uint64_t est, uint64_t now)
{
	return vgpu_window_wait(&g->schedule, now, now + g->inflight_ns + est / 2,
				g->inflight_ns == 0);
}

uint64_t vgpu_quantum(const struct gate *g)
{
	uint64_t slice = g->schedule.slice_us * 1000ull * 3 / 2;

	if (in_windows(g))
		return g->schedule.turn_queue_us * 1000ull;
	/* With neighbours, running dry inside one's own slice gives the rest of
	 * it away: keep a slice's worth queued. */
	return g->schedule.others && slice > QUANTUM_NS ? slice : QUANTUM_NS;
}

static uint64_t job_inflight(const struct gate *g, uint64_t now)
{
	uint32_t procs;

	return g->inflight_ns + vgpu_inflight_beside(g, now, &procs);
}

/* Windows move between two polls of the watcher. The watcher alone decides which gate there is. */
static void follow_windows(struct gate *g, const struct vgpu_budget *b, uint64_t now)
{
	struct vgpu_schedule s;

	/* A job that its budget holds does not want the card: others may have it. */
	if (!(g->schedule.gate & VGPU_GATE_BUDGET) ||
	    __atomic_load_n(&b->balance_ns, __ATOMIC_SEQ_CST) > 0)
		__atomic_store_n(&vgpu_state.cache.header->demand[g->card].wanted_ns, now,
				 __ATOMIC_SEQ_CST);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)g->card, &s, now) && s.gate)
		vgpu_gate_follow(g, &s, now);
}

/* Credit and debt of a time in which the budget holds nothing back do not say
 * what the job is due when it does again. */
static void forget_balance(struct vgpu_budget *b)
{
	int64_t balance = __atomic_load_n(&b->balance_ns, __ATOMIC_SEQ_CST);
	int64_t kept = balance > BURST_NS ? BURST_NS : balance < -BURST_NS ? -BURST_NS : balance;

	if (kept != balance)
		__atomic_compare_exchange_n(&b->balance_ns, &balance, kept, false, __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST);
}

static void note_launch(const struct gate *g, uint64_t est)
{
	uint32_t *typical = &vgpu_my(g->card)->typical_ns;
	double old = __atomic_load_n(typical, __ATOMIC_RELAXED), ns = (double)est;

	if (old > 0)
		ns = old + (ns - old) * ns / (ns + TYPICAL_NS);
	__atomic_store_n(typical, ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX, __ATOMIC_RELAXED);
}

/* A job with an empty budget waits until it has saved this much. Its work then comes in runs, and the
 * host is ahead of the card. If kernels ran one at a time, each would pay for the host's latency. 5 ms
 * of the share keep the wait of a small job short. */
static uint32_t saved_up(const struct gate *g)
{
	uint32_t share = g->schedule.cores * (SAVE_UP_NS / 100);

	return share < SAVE_UP_MOST_NS ? share : SAVE_UP_MOST_NS;
}

/* The job runs dry, not the process: else a process that waits would be passed by another. */
static bool in_credit(const struct gate *g, int64_t balance)
{
	uint32_t *dry = &vgpu_state.cache.header->budget[g->card].dry;

	if (balance <= 0)
		__atomic_store_n(dry, 1, __ATOMIC_RELAXED);
	else if (balance >= (int64_t)saved_up(g))
		__atomic_store_n(dry, 0, __ATOMIC_RELAXED);
	return !__atomic_load_n(dry, __ATOMIC_RELAXED);
}

/* A launch, and when it came to the gate. */
struct wish {
	CUcontext ctx;
	const struct vgpu_launch *launch;
	uint64_t since;
};

/* Of work whose launches differ, so much that it may take beyond what it is taken for. */
#define DIFFER_NS 20000000u

bool vgpu_may_be_long(const struct gate *g, const struct vgpu_launch *l)
{
	return l->more_ns && g->more_ns + l->more_ns > DIFFER_NS;
}

static bool of_lane(const struct wish *w, const struct lane *l)
{
	CUstream stream = w->launch->stream;

	return l->stream == stream && l->context && l->context->ctx == w->ctx &&
	       l->thread == vgpu_stream_thread(stream);
}

/* It may run beside the work of other streams of its context, of which it was just asked whether
 * it has ended: they all go before the first of them is paid for. Were each held until the one
 * before is paid for, streams would never run beside each other, and the job would have its share
 * of the time with a part of the card. What they cover together is what they are charged. What
 * nobody has measured yet may be any length. */
static bool goes_beside(const struct gate *g, const struct wish *w, int64_t balance, uint64_t now)
{
	uint64_t own = 0, est = w->launch->est_ns + w->launch->more_ns, debt;
	unsigned others = 0;

	for (unsigned i = 0; i < g->lanes; i++) {
		const struct lane *l = &g->lane[i];
		const struct vgpu_stream_batch *last = &l->ring[(l->first + l->closed) % RING];

		if (!of_lane(w, l)) {
			others += l->context && l->context->ctx == w->ctx &&
				  (l->closed || (l->open && now < last->opened_ns + last->est_ns));
			continue;
		}
		for (unsigned k = 0; k < l->closed + l->open; k++)
			own += l->ring[(l->first + k) % RING].est_ns;
	}
	debt = others * est < BURST_NS ? others * est : BURST_NS;
	return others && w->launch->samples && balance >= -(int64_t)debt &&
	       (!own || own + est <= vgpu_quantum(g));
}

/* fresh: completions were just asked for. */
static bool may_go(const struct gate *g, struct vgpu_budget *budget, const struct wish *w,
		   bool fresh, uint64_t now)
{
	bool held = g->schedule.gate & VGPU_GATE_BUDGET, beside = false;
	uint64_t est = w->launch->est_ns;
	int64_t balance;

	if (g->schedule.gate & VGPU_GATE_SHUT)
		return false;
	if (!(g->schedule.gate & (VGPU_GATE_BUDGET | VGPU_GATE_WINDOW)))
		return true;
	if (in_windows(g) && window_wait(g, est, now))
		return false;
	if (held && !vgpu_order_first(budget, w->since, now))
		return false;
	if (held) {
		balance = __atomic_load_n(&budget->balance_ns, __ATOMIC_SEQ_CST);
		beside = fresh && g->schedule.gate == VGPU_GATE_BUDGET &&
			 goes_beside(g, w, balance, now);
		if (!in_credit(g, balance) && !beside)
			return false;
	}
	if (g->inflight_ns == 0 || (!(held && vgpu_may_be_long(g, w->launch)) &&
				    (beside || g->inflight_ns + est <= vgpu_quantum(g) ||
				     ((est <= PAIR_NS || in_windows(g)) && g->inflight_ns <= est))))
		return true;
	/* It waits for its own work now, which may need that of others. */
	if (held)
		vgpu_order_leave(budget, w->since);
	return false;
}

/* Another thread is in a call that may end the context. */
static bool may_end(struct gate *g, CUcontext ctx, uint64_t since, uint64_t now)
{
	const struct gate_context *c = vgpu_context_find(g, ctx);

	return c && c->ends && now - since < STUCK_NS;
}

/* Another stream that is full may wait for what the caller does after its launch. */
static void close_all(struct gate *g, const struct wish *w)
{
	for (unsigned i = 0; i < g->lanes; i++) {
		struct lane *l = &g->lane[i];

		if (l->open && (of_lane(w, l) || !vgpu_event_blocks(l)))
			vgpu_batch_end(l);
	}
}

static uint64_t nap(const struct gate *g, const struct vgpu_budget *budget, uint64_t est,
		    uint64_t now)
{
	uint64_t ns = 0, window;

	if (g->schedule.gate & VGPU_GATE_BUDGET)
		ns = vgpu_budget_wait(budget, g->schedule.cores, budget->dry ? saved_up(g) : 1);
	if (in_windows(g)) {
		window = window_wait(g, est, now);
		window = window > WINDOW_POLL_NS ? WINDOW_POLL_NS : window;
		ns = window > ns ? window : ns;
	}
	if (ns == 0)
		ns = est / 4;
	if (g->inflight_ns && ns > POLL_NS)
		ns = POLL_NS; /* completions change the balance */
	if (ns < SLEEP_MIN_NS)
		ns = SLEEP_MIN_NS;
	return ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
}

/* A launch of a stream was held for so long. */
static void note_held(struct gate *g, const struct wish *w, uint64_t ns)
{
	for (unsigned i = 0; i < g->lanes; i++) {
		struct lane *l = &g->lane[i];

		if ((l->open || l->closed) && !of_lane(w, l))
			l->held_ns += ns;
	}
}

/* Kernels of several processes may wait for each other. If no work of the job completes, the oldest
 * launch passes. It first waits for half of the job's debt: long kernels that do not wait for each
 * other keep the limit. Lengths count up to 1 ms, because they can contain such waits. */
static bool passes_in_order(struct gate *g, struct vgpu_budget *budget, const struct wish *w,
			    uint64_t began, uint64_t now)
{
	int64_t balance = __atomic_load_n(&budget->balance_ns, __ATOMIC_RELAXED);
	uint64_t debt = balance < 0 ? (uint64_t)-balance : 0;
	uint64_t wait = w->launch->samples ? PAST_NS + w->launch->est_ns : STUCK_NS;
	uint64_t at = vgpu_state.cache.header->progress_ns[g->card];

	wait = wait > debt / 2 ? wait : debt / 2;
	at = at > began ? at : began;
	if (now <= at + wait || !vgpu_order_first(budget, w->since, now))
		return false;
	vgpu_gate_progress(g, now);
	return true;
}

/* What is on its way does not end: it may need this launch. Where the budget is used up, such
 * launches have the job's part of the time even so: some work may never end. */
static bool goes_past(struct gate *g, struct vgpu_budget *budget, struct vgpu_launch *l,
		      const struct wish *w, uint64_t began, uint64_t now)
{
	uint64_t wait = vgpu_only_budget(g) && l->samples ? PAST_NS + 10 * (l->est_ns + l->more_ns)
							  : STUCK_NS + 10 * g->inflight_ns;

	if (g->procs && vgpu_only_budget(g))
		return passes_in_order(g, budget, w, began, now);
	wait = wait < PAST_MOST_NS ? wait : PAST_MOST_NS;
	if (!g->inflight_ns || now <= g->progress_ns || now - g->progress_ns <= wait)
		return false;
	if (!(g->schedule.gate & VGPU_GATE_BUDGET) ||
	    __atomic_load_n(&budget->balance_ns, __ATOMIC_RELAXED) > 0)
		return true;
	if (now < g->past_ns)
		return false;
	vgpu_gate_past(g, l->est_ns + l->more_ns, now);
	l->past = true;
	return true;
}

uint64_t vgpu_gate_wait(struct gate *g, CUcontext ctx, struct vgpu_launch *l, bool *events,
			uint64_t *went)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[g->card];
	uint64_t began = 0, now = vgpu_now(), in_flight, ns;
	const struct wish w = {ctx, l, now};
	/* To query completions at each launch that may go anyway costs too much. */
	bool ask = now - g->reaped_ns > REAP_NS, closed = false;

	for (;; now = vgpu_now()) {
		/* Another thread's capture begins and ends while the lock is free. */
		*events = !vgpu_events_barred();
		if (*events && ask)
			vgpu_batch_reap(g, now);
		in_flight = job_inflight(g, now);
		/* The bound also applies while uncharged work runs in front of the job's work. */
		vgpu_budget_refill(budget, now, g->schedule.cores,
				   (int64_t)(in_flight + g->more_ns +
					     (in_windows(g) ? WINDOW_BURST_NS : BURST_NS)));
		vgpu_budget_credit(vgpu_state.grant, vgpu_state.cache.header, g->card, BURST_NS);
		if (!(g->schedule.gate & VGPU_GATE_BUDGET))
			forget_balance(budget);
		if (in_windows(g))
			follow_windows(g, budget, now);
		if (!g->on ||
		    (!may_end(g, ctx, w.since, now) && may_go(g, budget, &w, *events && ask, now)))
			break;
		if (*events && !ask) {
			ask = true;
			continue;
		}
		/* It waits for its own work in batches that are open: that may be done. */
		if (*events && !closed && !__atomic_load_n(&budget->dry, __ATOMIC_RELAXED)) {
			close_all(g, &w);
			closed = true;
			continue;
		}
		if (!began) {
			began = now;
			if (g->progress_ns < now)
				g->progress_ns = now;
			__atomic_add_fetch(&budget->waits, 1, __ATOMIC_RELAXED);
		}
		if (*events)
			close_all(g, &w);
		if (goes_past(g, budget, l, &w, began, now))
			break;
		ns = nap(g, budget, l->est_ns, now);
		vgpu_gate_nap(g, ns);
		note_held(g, &w, vgpu_now() - now);
	}
	if (!in_flight)
		vgpu_gate_begin(g, now);
	note_launch(g, l->est_ns);
	if (began)
		__atomic_add_fetch(&budget->wait_ns, now - began, __ATOMIC_RELAXED);
	*went = now;
	return w.since;
}
