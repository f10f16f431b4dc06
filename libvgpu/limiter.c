/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limiter.c - the gate of the hard cap: a launch goes when the job's budget of
 * GPU time is above zero and little work is in flight. The budget is refilled
 * at cores/100 of wall time and charged with measured time (batch.c); it may go
 * into debt, so a kernel longer than the budget runs and is then paid for.
 *
 * The gate is open, at the cost of one load, while contention on the card
 * already holds the job at its share (gresd decides: schedule.gate).
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "limiter.h"

/* Work in flight that the gate cannot stop any more. */
#define QUANTUM_NS 1000000u
/* Up to this length a second kernel is let in behind the running one. */
#define PAIR_NS 5000000u
/* Credit an idle job may save: a short burst goes through undisturbed. */
#define BURST_NS 5000000
#define SAVE_UP_NS 5000000
#define SAVE_UP_MOST_NS 1500000
#define TURN_BURST_NS 60000000
/* A launch waits this long at most for work that does not progress: it may be
 * what that work is waiting for. */
#define STUCK_NS 50000000u
/* A batch without launches for this long is closed by the watcher. */
#define IDLE_CLOSE_NS 300000u
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 2000000u
#define POLL_NS 250000u
#define REAP_NS 200000u
/* So old may a look at the budget be: it fills by less than this meanwhile. */
#define FRESH_NS 100000u
/* A launch that waits for its turn looks again this often: turns move. */
#define TURN_POLL_NS 1000000u
/* Weighs a launch in the typical length; so long a time is remembered. */
#define TYPICAL_NS 20000000u

uint32_t vgpu_gate_any;
int vgpu_captures;

static struct gate gates[VGPU_MAX_CARDS] = {
	[0 ... VGPU_MAX_CARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

void vgpu_gate_schedule(int card, const struct vgpu_schedule *s)
{
	struct gate *g = &gates[card];
	uint32_t any = 0;

	pthread_mutex_lock(&g->lock);
	g->card = card;
	g->schedule = *s;
	g->on = s->gate != 0;
	pthread_mutex_unlock(&g->lock);
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		any |= gates[i].on;
	__atomic_store_n(&vgpu_gate_any, any, __ATOMIC_RELAXED);
	if (any)
		__atomic_or_fetch(&vgpu_state.slot->flags, VGPU_SLOT_GATED, __ATOMIC_RELAXED);
}

static bool takes_turns(const struct gate *g)
{
	return g->schedule.gate & VGPU_GATE_TURN;
}

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

static uint64_t quantum(const struct gate *g)
{
	uint64_t slice = g->schedule.slice_us * 1000ull * 3 / 2;

	if (takes_turns(g) || in_windows(g))
		return g->schedule.turn_queue_us * 1000ull;
	/* With neighbours, running dry inside one's own slice gives the rest of
	 * it away: keep a slice's worth queued. */
	return g->schedule.others && slice > QUANTUM_NS ? slice : QUANTUM_NS;
}

/* Estimated work of all processes of the job. */
static uint64_t job_inflight(const struct gate *g)
{
	const struct vgpu_cache *c = &vgpu_state.cache;
	uint32_t high = __atomic_load_n(&c->header->high_slot, __ATOMIC_RELAXED);
	uint64_t sum = g->inflight_ns;

	for (uint32_t i = 0; i < high; i++)
		if (&c->slots[i] != vgpu_state.slot && c->slots[i].owner)
			sum += __atomic_load_n(&c->slots[i].card[g->card].inflight_ns,
					       __ATOMIC_RELAXED);
	return sum;
}

static struct vgpu_turn_state *turn_state(const struct gate *g)
{
	return &vgpu_state.cache.header->turn[g->card];
}

static uint64_t turn_wait(const struct gate *g, uint64_t now)
{
	return vgpu_turn_wait(&g->schedule, now,
			      vgpu_turn_until(turn_state(g), now, job_inflight(g)));
}

/* Turns move between two looks of the watcher. Which gate there is stays its
 * decision. */
static void follow_turns(struct gate *g, const struct vgpu_budget *b, uint64_t now)
{
	struct vgpu_schedule s;

	/* A job that its budget holds does not want the card: others may have it. */
	if (!(g->schedule.gate & VGPU_GATE_BUDGET) ||
	    __atomic_load_n(&b->balance_ns, __ATOMIC_SEQ_CST) > 0)
		__atomic_store_n(&turn_state(g)->wanted_ns, now, __ATOMIC_SEQ_CST);
	if (vgpu_schedule_read(vgpu_state.grant, (unsigned)g->card, &s) && s.gate)
		g->schedule = s;
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

static void note_launch(const struct gate *g, uint64_t est, uint64_t now)
{
	uint32_t *typical = &vgpu_my(g->card)->typical_ns;
	int64_t old = __atomic_load_n(typical, __ATOMIC_RELAXED), est_ns = (int64_t)est;

	__atomic_store_n(typical,
			 old ? old + (est_ns - old) * est_ns / (est_ns + TYPICAL_NS) : est_ns,
			 __ATOMIC_RELAXED);
	if (takes_turns(g))
		vgpu_turn_launched(turn_state(g), now, est);
}

/* What must be saved up before a job that has run dry goes on: work then comes in
 * runs, with the host ahead of the card as it is without a limit. One kernel at a
 * time, each would be charged for the host's latency too. At 5 ms of its share a
 * small job does not wait too long for it. */
static uint32_t saved_up(const struct gate *g)
{
	uint32_t share = g->schedule.cores * (SAVE_UP_NS / 100);

	return share < SAVE_UP_MOST_NS ? share : SAVE_UP_MOST_NS;
}

/* Run dry is what the job is, not the process: else one that waits would be passed
 * by another that does not. */
static bool in_credit(const struct gate *g, int64_t balance)
{
	uint32_t *dry = &vgpu_state.cache.header->budget[g->card].dry;

	if (balance <= 0)
		__atomic_store_n(dry, 1, __ATOMIC_RELAXED);
	else if (balance >= (int64_t)saved_up(g))
		__atomic_store_n(dry, 0, __ATOMIC_RELAXED);
	return !__atomic_load_n(dry, __ATOMIC_RELAXED);
}

static bool may_go(const struct gate *g, int64_t balance, uint64_t est, uint64_t now)
{
	if (!(g->schedule.gate & (VGPU_GATE_BUDGET | VGPU_GATE_TURN | VGPU_GATE_WINDOW)))
		return true;
	if (in_windows(g) && window_wait(g, est, now))
		return false;
	if ((g->schedule.gate & VGPU_GATE_BUDGET) && !in_credit(g, balance))
		return false;
	if (takes_turns(g) && turn_wait(g, now))
		return false;
	return g->inflight_ns == 0 || g->inflight_ns + est <= quantum(g) ||
	       ((est <= PAIR_NS || takes_turns(g)) && g->inflight_ns <= est);
}

static void close_all(struct gate *g)
{
	for (int i = 0; i < LANES; i++)
		vgpu_batch_close(&g->lane[i]);
}

static uint64_t nap(const struct gate *g, const struct vgpu_budget *budget, uint64_t est,
		    uint64_t now)
{
	uint64_t ns = 0, turn;

	if (g->schedule.gate & VGPU_GATE_BUDGET)
		ns = vgpu_budget_wait(budget, g->schedule.cores, budget->dry ? saved_up(g) : 1);
	if (takes_turns(g)) {
		turn = turn_wait(g, now);
		turn = turn > TURN_POLL_NS ? TURN_POLL_NS : turn;
		ns = turn > ns ? turn : ns;
	}
	if (in_windows(g)) {
		turn = window_wait(g, est, now);
		ns = turn > ns ? turn : ns;
	}
	if (ns == 0)
		ns = est / 4;
	if (g->inflight_ns && ns > POLL_NS)
		ns = POLL_NS; /* completions change the balance */
	if (ns < SLEEP_MIN_NS)
		ns = SLEEP_MIN_NS;
	return ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
}

/* Waits, with g->lock released while asleep, until the launch may go. events:
 * event calls are allowed (no capture is open). */
static void wait_turn(struct gate *g, uint64_t est, bool events)
{
	struct vgpu_budget *budget = &vgpu_state.cache.header->budget[g->card];
	uint64_t began = 0, now = vgpu_now(), ns;
	/* Asking for completions costs more than all the rest: not at every launch
	 * that may go anyway. */
	bool ask = now - g->reaped_ns > REAP_NS;

	for (;; now = vgpu_now()) {
		if (events && ask) {
			vgpu_batch_reap(g, now);
			g->reaped_ns = now;
		}
		/* In turns the job stands idle while others have theirs: what it is due
		 * meanwhile is not a saved-up burst. */
		vgpu_budget_refill(budget, now, g->schedule.cores, job_inflight(g) == 0,
				   takes_turns(g) ? TURN_BURST_NS : BURST_NS);
		if (!(g->schedule.gate & VGPU_GATE_BUDGET))
			forget_balance(budget);
		if (takes_turns(g))
			follow_turns(g, budget, now);
		if (!g->on ||
		    may_go(g, __atomic_load_n(&budget->balance_ns, __ATOMIC_SEQ_CST), est, now))
			break;
		if (events && !ask) {
			ask = true;
			continue;
		}
		if (!began) {
			began = now;
			if (g->progress_ns < now)
				g->progress_ns = now;
			__atomic_add_fetch(&budget->waits, 1, __ATOMIC_RELAXED);
		}
		if (events)
			close_all(g);
		if (g->inflight_ns && now > g->progress_ns &&
		    now - g->progress_ns > STUCK_NS + 10 * g->inflight_ns)
			break;
		ns = nap(g, budget, est, now);
		pthread_mutex_unlock(&g->lock);
		nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
		pthread_mutex_lock(&g->lock);
	}
	note_launch(g, est, now);
	if (began)
		__atomic_add_fetch(&budget->wait_ns, now - began, __ATOMIC_RELAXED);
}

static void add_func(struct vgpu_stream_batch *b, struct vgpu_cost *cost, uint64_t est_ns)
{
	for (uint32_t i = 0; i < b->nfuncs; i++)
		if (b->func[i].cost == cost)
			return;
	/* More functions than fit: the others learn from other batches. */
	if (b->nfuncs < FUNCS) {
		b->func[b->nfuncs].cost = cost;
		b->func[b->nfuncs++].est_ns = est_ns;
	}
}

/* The common launch: another one into the batch that the last one went to, while
 * the budget is in credit and was looked at a moment ago. By the clock of the last
 * launch's return: asking for the time would cost as much as all the rest. */
static struct vgpu_stream_batch *quick(struct gate *g, const struct vgpu_budget *budget,
				       CUcontext ctx, CUstream stream, uint64_t est)
{
	uint64_t seen = __atomic_load_n(&g->seen_ns, __ATOMIC_RELAXED);
	struct lane *lane = g->last;
	struct vgpu_stream_batch *b;

	if (g->schedule.gate != VGPU_GATE_BUDGET || !lane || !lane->open ||
	    lane->stream != stream || lane->context->ctx != ctx)
		return NULL;
	b = &lane->ring[(lane->first + lane->closed) % RING];
	if (b->learns || b->est_ns >= BATCH_NS || g->inflight_ns + est > quantum(g) ||
	    seen > g->reaped_ns + REAP_NS ||
	    seen > __atomic_load_n(&budget->refilled_ns, __ATOMIC_RELAXED) + FRESH_NS ||
	    __atomic_load_n(&budget->dry, __ATOMIC_RELAXED) ||
	    __atomic_load_n(&budget->balance_ns, __ATOMIC_SEQ_CST) <= 0)
		return NULL;
	return b;
}

static void join_batch(struct gate *g, struct vgpu_launch *l, struct vgpu_cost *cost)
{
	struct vgpu_stream_batch *b = l->batch;

	__atomic_add_fetch(&b->pending, 1, __ATOMIC_RELAXED);
	b->launches++;
	b->est_ns += l->est_ns;
	add_func(b, cost, l->est_ns);
	g->inflight_ns += l->est_ns;
	__atomic_store_n(&vgpu_my(l->card)->inflight_ns, g->inflight_ns, __ATOMIC_RELEASE);
}

void vgpu_gate_enter(struct vgpu_launch *l, CUstream stream, uint64_t key, uint64_t unknown_ns)
{
	struct vgpu_budget *budget;
	struct vgpu_cost *cost;
	struct gate *g;
	CUcontext ctx = NULL;
	bool events = true;
	int capturing = CU_STREAM_CAPTURE_STATUS_NONE;

	l->card = vgpu_card_current();
	l->batch = NULL;
	if (l->card < 0 || !gates[l->card].on || vgpu_real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS ||
	    !ctx) {
		l->card = -1;
		return;
	}
	if (unlikely(__atomic_load_n(&vgpu_captures, __ATOMIC_ACQUIRE) > 0)) {
		/* Never touch a capture: no gate, no charge, no event. */
		if (!vgpu_real.cuStreamIsCapturing ||
		    vgpu_real.cuStreamIsCapturing(stream, &capturing) != CUDA_SUCCESS ||
		    capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
			l->card = -1;
			return;
		}
		events = false;
	}
	g = &gates[l->card];
	cost = vgpu_cost_of(key);
	l->est_ns = cost->samples ? cost->est_ns : unknown_ns;
	l->stream = stream;
	budget = &vgpu_state.cache.header->budget[l->card];
	pthread_mutex_lock(&g->lock);
	if (likely(events && cost->samples))
		l->batch = quick(g, budget, ctx, stream, l->est_ns);
	l->lane = g->last;
	if (!l->batch) {
		wait_turn(g, l->est_ns, events);
		l->lane = g->last = events ? vgpu_lane_of(g, ctx, stream) : NULL;
		if (l->lane)
			l->batch = vgpu_batch_open(l->lane, cost->samples == 0, vgpu_now());
	}
	if (l->batch) {
		join_batch(g, l, cost);
	} else {
		/* Not measured: the estimate is the charge. */
		__atomic_add_fetch(&budget->charged_ns, l->est_ns, __ATOMIC_RELAXED);
		__atomic_add_fetch(&vgpu_my(l->card)->gpu_ns, l->est_ns, __ATOMIC_RELAXED);
	}
	__atomic_sub_fetch(&budget->balance_ns, (int64_t)l->est_ns, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&g->lock);
}

/* Nothing ran. */
static void leave_failed(struct gate *g, const struct vgpu_launch *l)
{
	struct vgpu_stream_batch *b = l->batch;

	b->launches -= b->launches != 0;
	b->est_ns -= b->est_ns < l->est_ns ? b->est_ns : l->est_ns;
	g->inflight_ns -= g->inflight_ns < l->est_ns ? g->inflight_ns : l->est_ns;
	__atomic_add_fetch(&vgpu_state.cache.header->budget[l->card].balance_ns, (int64_t)l->est_ns,
			   __ATOMIC_SEQ_CST);
}

/* Without the lock: pending keeps the batch open until the last line. Only a drop
 * empties it meanwhile. */
static void leave_batch(struct gate *g, struct vgpu_stream_batch *b)
{
	uint64_t now = vgpu_now(), none = 0;
	uint32_t pending = __atomic_load_n(&b->pending, __ATOMIC_RELAXED);

	__atomic_store_n(&b->last_ns, now, __ATOMIC_RELAXED);
	if (!__atomic_load_n(&b->first_ns, __ATOMIC_RELAXED))
		__atomic_compare_exchange_n(&b->first_ns, &none, now, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	__atomic_store_n(&g->seen_ns, now, __ATOMIC_RELAXED);
	while (pending && !__atomic_compare_exchange_n(&b->pending, &pending, pending - 1, false,
						       __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

void vgpu_gate_leave(struct vgpu_launch *l, CUresult result)
{
	struct vgpu_stream_batch *b = l->batch;
	struct gate *g;
	bool full;

	if (l->card < 0 || !b)
		return;
	g = &gates[l->card];
	full = b->learns || __atomic_load_n(&b->est_ns, __ATOMIC_RELAXED) >= BATCH_NS;
	if (likely(result == CUDA_SUCCESS && !full)) {
		leave_batch(g, b);
		return;
	}
	pthread_mutex_lock(&g->lock);
	if (l->lane->open && b == &l->lane->ring[(l->lane->first + l->lane->closed) % RING]) {
		if (result != CUDA_SUCCESS && b->pending)
			leave_failed(g, l);
		leave_batch(g, b);
		if (full && vgpu_captures == 0)
			vgpu_batch_close(l->lane);
	}
	pthread_mutex_unlock(&g->lock);
}

void vgpu_gate_boundary(CUstream stream)
{
	if (vgpu_captures)
		return;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &gates[i];

		pthread_mutex_lock(&g->lock);
		for (int k = 0; k < LANES; k++)
			if (g->lane[k].open && (!stream || g->lane[k].stream == stream))
				vgpu_batch_close(&g->lane[k]);
		pthread_mutex_unlock(&g->lock);
	}
}

void vgpu_gate_drop_stream(CUstream stream)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &gates[i];

		pthread_mutex_lock(&g->lock);
		for (int k = 0; k < LANES; k++)
			if (g->lane[k].context && g->lane[k].stream == stream)
				vgpu_lane_drop(g, &g->lane[k]);
		pthread_mutex_unlock(&g->lock);
	}
}

void vgpu_gate_drop_context(CUcontext ctx)
{
	vgpu_working_forget(NULL, ctx);
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &gates[i];

		pthread_mutex_lock(&g->lock);
		for (int k = 0; k < LANES; k++) {
			struct lane *l = &g->lane[k];

			if (!l->context || (ctx && l->context->ctx != ctx))
				continue;
			vgpu_lane_drop(g, l);
			/* Its events go with the context. */
			memset(l, 0, sizeof *l);
			g->last = NULL;
		}
		for (int k = 0; k < CONTEXTS; k++)
			if (!ctx || g->context[k].ctx == ctx)
				memset(&g->context[k], 0, sizeof g->context[k]);
		pthread_mutex_unlock(&g->lock);
	}
}

void vgpu_gate_in_child(void)
{
	/* Threads of the parent may have held these. Its work and events are not
	 * ours, and CUDA does not work across fork anyway. */
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		pthread_mutex_init(&gates[i].lock, NULL);
		memset(gates[i].lane, 0, sizeof gates[i].lane);
		memset(gates[i].context, 0, sizeof gates[i].context);
		gates[i].inflight_ns = 0;
		gates[i].last = NULL;
	}
	vgpu_captures = 0;
}

void vgpu_gate_forget_key(uint64_t key)
{
	struct vgpu_cost *c = vgpu_cost_of(key);

	c->samples = 0;
}

/* Event calls of another thread need the lane's context to be current. */
static bool tick_lane(struct gate *g, struct lane *l, uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];
	CUcontext popped;

	if (!l->open || b->pending || now - b->last_ns < IDLE_CLOSE_NS)
		return l->open;
	if (vgpu_real.cuCtxPushCurrent_v2(l->context->ctx) != CUDA_SUCCESS) {
		vgpu_lane_drop(g, l);
		return false;
	}
	vgpu_batch_close(l);
	vgpu_real.cuCtxPopCurrent_v2(&popped);
	return true;
}

bool vgpu_gate_tick(void)
{
	uint64_t now = vgpu_now();
	bool busy = false;

	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &gates[i];

		if (vgpu_captures || pthread_mutex_trylock(&g->lock) != 0) {
			busy = true;
			continue;
		}
		for (int k = 0; k < LANES; k++)
			busy |= tick_lane(g, &g->lane[k], now) || g->lane[k].closed;
		vgpu_batch_reap(g, now);
		/* gresd hands the card over when the job's work is done; nobody but this
		 * thread sees that while the program waits for it. */
		if (takes_turns(g))
			vgpu_turn_until(turn_state(g), now, job_inflight(g));
		pthread_mutex_unlock(&g->lock);
	}
	return busy;
}
#endif
