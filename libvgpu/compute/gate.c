/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - the gate of the hard cap: a launch goes when the job's budget of
 * GPU time is above zero and little work is in flight. The budget is refilled
 * at cores/100 of wall time and charged with measured time (reap.c); it may go
 * into debt, so a kernel longer than the budget runs and is then paid for.
 *
 * The gate is open, at the cost of one load, while contention on the card
 * already holds the job at its share (gresd decides: schedule.gate).
 */
#define _GNU_SOURCE
#include "gate.h"
#include "../job/cards.h"
#include "batch.h"
#include "charge.h"
#include "event.h"
#include "lane.h"
#include "own_time.h"
#include "reap.h"
#include "wait.h"

/* A batch without launches for this long is closed by the watcher. */
#define IDLE_CLOSE_NS 300000u
/* Launches that go by one check of the budget and of completions. A check at each launch would cost more
 * than all the rest. */
#define QUICK_MAX 128

/* Kernels of several processes may wait for each other. A launch takes at most this from the budget in
 * advance: else each wait would lengthen the next one. The rest is charged when the kernel ends. */
#define AHEAD_MOST_NS 1000000u

#define LOCK_TRIES 100 /* some 5 us */
#ifdef __x86_64__
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("isb" ::: "memory") /* yield takes no time on most of them */
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

uint32_t vgpu_gate_any;
pthread_mutex_t vgpu_any_lock = PTHREAD_MUTEX_INITIALIZER;
void (*vgpu_unwatched)(void);

struct gate vgpu_gates[VGPU_MAX_CARDS] = {
	[0 ... VGPU_MAX_CARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

/* The watcher does not run, so this process would miss that gresd shuts the gate or moves the window. */
static bool unwatched(int card)
{
	return __atomic_load_n(&vgpu_unwatched, __ATOMIC_SEQ_CST) && !vgpu_state.from_env &&
	       vgpu_state.grant->card[card].mode != VGPU_MODE_OFF;
}

void vgpu_gate_schedule(int card, const struct vgpu_schedule *told)
{
	struct vgpu_schedule followed = *told, *s = &followed;
	struct gate *g = &vgpu_gates[card];
	uint32_t any = 0;

	if (unlikely(unwatched(card)))
		s->gate = VGPU_GATE_BUDGET;
	if (s->solo && s->solo == __atomic_load_n(&vgpu_state.slot->owner, __ATOMIC_RELAXED))
		s->gate &= ~VGPU_GATE_SHUT;
	pthread_mutex_lock(&vgpu_any_lock);
	pthread_mutex_lock(&g->lock);
	g->card = card;
	g->concurrent = vgpu_state.grant->card[card].engine == VGPU_ENGINE_CONCURRENT;
	/* The watcher and new contexts read schedules in any order: an older one changes nothing. */
	if ((int32_t)(s->seq - g->schedule.seq) >= 0) {
		vgpu_gate_follow(g, s, vgpu_now());
		__atomic_store_n(&g->on, s->gate != 0, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&g->lock);
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		any |= __atomic_load_n(&vgpu_gates[i].on, __ATOMIC_RELAXED);
	__atomic_store_n(&vgpu_gate_any, any, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&vgpu_any_lock);
	if (any)
		__atomic_or_fetch(&vgpu_state.slot->flags, VGPU_SLOT_GATED, __ATOMIC_RELAXED);
}

static void add_func(struct vgpu_stream_batch *b, struct vgpu_cost *cost, uint64_t est_ns)
{
	for (uint32_t i = 0; i < b->nfuncs; i++) {
		if (b->func[i].cost == cost) {
			b->func[i].launches++;
			return;
		}
	}
	/* More functions than fit: the others learn from other batches. */
	if (b->nfuncs < FUNCS)
		b->func[b->nfuncs++] = (struct vgpu_cost_part){cost, 1};
	else
		b->rest_ns += est_ns;
}

/* A stream that was created is of one context, as long as its handle lives; the others are
 * of whichever is current. To ask for that costs as much as all that quick() does. */
static bool of_one_context(CUstream stream)
{
	return stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* The watcher holds the lock for microseconds: sleeping would take longer. */
static void lock_awake(struct gate *g)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (likely(pthread_mutex_trylock(&g->lock) == 0))
			return;
		PAUSE();
	}
	pthread_mutex_lock(&g->lock);
}

static bool current(CUcontext *ctx)
{
	return vgpu_real.cuCtxGetCurrent(ctx) == CUDA_SUCCESS && *ctx;
}

/* The common launch: another one into the batch that the last one went to, while
 * the budget is in credit and was looked at a moment ago. ctx: NULL where the stream says it. */
static struct vgpu_stream_batch *quick(struct gate *g, const struct vgpu_budget *budget,
				       CUcontext ctx, const struct vgpu_launch *l,
				       const struct vgpu_cost *cost)
{
	struct lane *lane = g->last;
	struct vgpu_stream_batch *b;
	int64_t balance;

	if (g->schedule.gate != VGPU_GATE_BUDGET || !g->quick_left || !lane || !lane->open ||
	    lane->busy || lane->stream != l->stream ||
	    lane->thread != vgpu_stream_thread(l->stream) || (ctx && lane->context->ctx != ctx))
		return NULL;
	b = &lane->ring[(lane->first + lane->closed) % RING];
	balance = __atomic_load_n(&budget->balance_ns, __ATOMIC_RELAXED);
	if (b->alone || b->est_ns >= BATCH_NS || g->inflight_ns + l->est_ns > vgpu_quantum(g) ||
	    vgpu_may_be_long(g, l) || LOAD(&budget->dry) || balance <= (int64_t)g->owed_ns ||
	    vgpu_batch_alone(g, cost, l, balance, g->reaped_ns))
		return NULL;
	g->quick_left--;
	g->owed_ns += l->est_ns;
	return b;
}

/* What quick launches cost, all at once: the other processes of the job learn of it up to
 * QUICK_MAX launches later, or at the watcher's next look. */
static void pay(struct gate *g)
{
	if (!g->owed_ns)
		return;
	__atomic_sub_fetch(&vgpu_state.cache.header->budget[g->card].balance_ns,
			   (int64_t)g->owed_ns, __ATOMIC_SEQ_CST);
	g->owed_ns = 0;
}

static void join_batch(struct gate *g, struct vgpu_launch *l, struct vgpu_cost *cost)
{
	struct vgpu_stream_batch *b = l->batch;

	b->entered++;
	b->launches++;
	l->lane->launched = true;
	__atomic_store_n(&b->est_ns, b->est_ns + l->est_ns, __ATOMIC_RELAXED);
	add_func(b, cost, l->est_ns);
	b->more_ns += l->more_ns;
	b->past |= l->past;
	g->inflight_ns += l->est_ns;
	g->more_ns += l->more_ns;
	__atomic_store_n(&vgpu_my(l->card)->inflight_ns, g->inflight_ns, __ATOMIC_RELEASE);
}

__thread bool vgpu_covered;

/* False: the launch is none for the gate. *ctx: NULL where the stream says it. *events: whether
 * event calls are allowed. */
static inline bool gated(struct vgpu_launch *l, CUstream stream, CUcontext *ctx, bool *events)
{
	void (*again)(void);

	l->card = vgpu_inside || vgpu_covered ? -1
		  : vgpu_state.ncards == 1    ? 0
					      : vgpu_card_current();
	l->refused = vgpu_inside; /* a callback of the driver's: the gate may be this thread's */
	if (l->card < 0 || !__atomic_load_n(&vgpu_gates[l->card].on, __ATOMIC_RELAXED) ||
	    (!of_one_context(stream) && !current(ctx)))
		return false;
	again = __atomic_load_n(&vgpu_unwatched, __ATOMIC_RELAXED);
	if (unlikely(again != NULL))
		again();
	if (likely(__atomic_load_n(&vgpu_captures, __ATOMIC_ACQUIRE) <= 0))
		return true;
	/* A capture is never touched: no gate, no charge, no event. */
	if (vgpu_stream_captured(stream))
		return false;
	*events = !vgpu_events_barred();
	return true;
}

void vgpu_gate_enter(struct vgpu_launch *l, CUstream stream, uint64_t key, uint64_t unknown_ns)
{
	struct vgpu_budget *budget;
	struct vgpu_cost *cost;
	struct gate *g;
	CUcontext ctx = NULL;
	bool events = true;
	uint64_t since = 0, now = 0;

	l->batch = NULL;
	l->past = false;
	if (!gated(l, stream, &ctx, &events)) {
		l->card = -1;
		return;
	}
	g = &vgpu_gates[l->card];
	cost = vgpu_cost_of(key);
	l->key = key;
	l->samples = __atomic_load_n(&cost->samples, __ATOMIC_ACQUIRE);
	l->est_ns = l->samples ? __atomic_load_n(&cost->est_ns, __ATOMIC_RELAXED) : unknown_ns;
	l->stream = stream;
	budget = &vgpu_state.cache.header->budget[l->card];
	lock_awake(g);
	l->more_ns = vgpu_cost_more(cost, l->est_ns);
	if (g->procs && vgpu_only_budget(g) && l->est_ns > AHEAD_MOST_NS)
		l->est_ns = AHEAD_MOST_NS;
	if (likely(events && l->samples && !l->waits))
		l->batch = quick(g, budget, ctx, l, cost);
	l->lane = g->last;
	if (!l->batch) {
		vgpu_inside = true;
		if (!ctx && !current(&ctx)) {
			vgpu_gate_release(g);
			l->card = -1;
			return;
		}
		pay(g);
		since = vgpu_gate_wait(g, ctx, l, &events, &now);
		g->quick_left = QUICK_MAX;
		l->lane = vgpu_lane_free(g, ctx, stream);
		if (l->lane != g->last)
			g->several_ns = now;
		g->last = l->lane;
		if (l->lane)
			l->batch = vgpu_batch_open(g, l->lane, cost, l, now);
		vgpu_inside = false;
	}
	if (l->batch)
		join_batch(g, l, cost);
	else
		vgpu_laneless_launch(g, ctx, l, now);
	if (since) {
		__atomic_sub_fetch(&budget->balance_ns, (int64_t)l->est_ns, __ATOMIC_SEQ_CST);
		vgpu_order_leave(budget, since);
	}
	pthread_mutex_unlock(&g->lock);
}

/* Nothing ran. */
static void leave_failed(struct gate *g, const struct vgpu_launch *l)
{
	struct vgpu_stream_batch *b = l->batch;
	const struct vgpu_cost *cost = vgpu_cost_of(l->key);

	b->launches -= b->launches != 0;
	for (uint32_t i = 0; i < b->nfuncs; i++)
		if (b->func[i].cost == cost)
			b->func[i].launches--;
	__atomic_store_n(&b->est_ns, b->est_ns - (b->est_ns < l->est_ns ? b->est_ns : l->est_ns),
			 __ATOMIC_RELAXED);
	b->more_ns -= b->more_ns < l->more_ns ? b->more_ns : l->more_ns;
	g->inflight_ns -= g->inflight_ns < l->est_ns ? g->inflight_ns : l->est_ns;
	g->more_ns -= g->more_ns < l->more_ns ? g->more_ns : l->more_ns;
	__atomic_add_fetch(&vgpu_state.cache.header->budget[l->card].balance_ns, (int64_t)l->est_ns,
			   __ATOMIC_SEQ_CST);
}

/* Without the lock: the batch stays open until the last line, unless it is dropped. */
static void leave_batch(struct vgpu_stream_batch *b)
{
	uint64_t none = 0;

	if (!__atomic_load_n(&b->first_ns, __ATOMIC_RELAXED))
		__atomic_compare_exchange_n(&b->first_ns, &none, vgpu_now(), false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	__atomic_add_fetch(&b->left, 1, __ATOMIC_RELEASE);
}

void vgpu_gate_leave(struct vgpu_launch *l, CUresult result)
{
	struct vgpu_stream_batch *b = l->batch;
	struct gate *g;
	bool full;

	if (l->card < 0 || !b)
		return;
	g = &vgpu_gates[l->card];
	full = b->alone || LOAD(&b->est_ns) >= BATCH_NS;
	if (likely(result == CUDA_SUCCESS && !full &&
		   !__atomic_load_n(&l->lane->marks, __ATOMIC_RELAXED))) {
		leave_batch(b);
		return;
	}
	vgpu_gate_hold(g);
	if (l->lane->open && b == &l->lane->ring[(l->lane->first + l->lane->closed) % RING]) {
		if (result != CUDA_SUCCESS && vgpu_batch_held(b))
			leave_failed(g, l);
		leave_batch(b);
		if (full)
			vgpu_batch_end(l->lane);
		else if (l->lane->marks)
			vgpu_batch_mark(l->lane);
	}
	vgpu_gate_release(g);
}

static bool tick_lane(struct lane *l, uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[(l->first + l->closed) % RING];

	if (!l->open || l->busy || l->context->ends || vgpu_batch_held(b))
		return l->open;
	if (b->launches != b->ticked) {
		b->ticked = b->launches;
		b->last_ns = now;
	}
	if (now - b->last_ns >= IDLE_CLOSE_NS && !vgpu_event_blocks(l))
		vgpu_batch_close(l);
	return true;
}

bool vgpu_gate_tick(void)
{
	uint64_t now = vgpu_now();
	bool busy = false;

	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct gate *g = &vgpu_gates[i];

		if (vgpu_events_barred() || pthread_mutex_trylock(&g->lock) != 0) {
			busy = true;
			continue;
		}
		if (vgpu_events_barred()) { /* since then */
			pthread_mutex_unlock(&g->lock);
			busy = true;
			continue;
		}
		vgpu_inside = true;
		pay(g);
		for (unsigned k = 0; k < g->lanes; k++)
			busy |= tick_lane(&g->lane[k], now) || g->lane[k].closed;
		vgpu_batch_reap(g, now);
		vgpu_laneless_charge(g, now, false);
		busy |= g->laneless_ns != 0;
		vgpu_gate_release(g);
	}
	return busy;
}
