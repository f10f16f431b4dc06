/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gates.h - the state of a card's gate.
 *
 * A lane is one stream of one context. Its launches form batches: an event
 * before, an event after. The end of a batch that is still running is the
 * start of the next, so a saturated stream costs one event per batch.
 * What is not marked is guarded by gate.lock. To record an event may block, as long as the
 * stream is full: the lock is free then, and the lane is busy, which nobody else touches. The
 * other event calls do not block and are made with the lock held; a profiler's callback that
 * comes from one finds vgpu_inside.
 */
#ifndef VGPU_COMPUTE_GATES_H
#define VGPU_COMPUTE_GATES_H

#include "../driver/captures.h"
#include "../job/job.h"
#include "compute.h"
#include "costs.h"
#include "cover.h"

#define LANES 128
#define RING 16
#define FUNCS 16
#define CONTEXTS 16

/* A batch is closed when it holds this much estimated work. */
#define BATCH_NS 500000u

struct vgpu_stream_batch {
	CUevent own_start, end, start; /* start: own_start, or the end before */
	uint64_t est_ns;               /* what its launches are taken for */
	uint64_t more_ns;              /* and may take beyond that (vgpu_cost_more) */
	/* Host times: before and after the start event is recorded, the first launch has
	 * returned, no launch came after it, the end event is recorded. */
	uint64_t asked_ns, opened_ns, first_ns, last_ns, recorded_ns;
	uint64_t own_ns;   /* of the gate when it was opened */
	uint64_t held_ns;  /* of the lane then */
	uint32_t launches; /* entered the gate, and did not fail */
	uint32_t entered;  /* the gate, with the lock held */
	uint32_t left;     /* have left the gate, launched or not; grows without the lock */
	uint32_t ticked;   /* launches when the watcher last looked */
	uint32_t nfuncs;
	uint32_t entries; /* vgpu_other_entries before its end event */
	uint32_t beside; /* so many other processes of the job, or contexts, had work on the card */
	bool tight;      /* began while the batch before was running */
	bool solid;      /* and was launched as a whole meanwhile: the card had no gap in it */
	bool alone;      /* of one launch: closed at once */
	uint32_t marked; /* so many launches are before its end event; lane.marks */
	bool unmeasured; /* an event is missing: all of the time since its launch is charged */
	bool past;       /* went past a budget that was used up (vgpu_gate_past) */
	struct vgpu_cost_part func[FUNCS];
	uint64_t rest_ns; /* estimated work of functions beyond FUNCS */
};

/* CU_STREAM_PER_THREAD is another stream in each thread: whose it is here, or NULL. */
extern __thread char vgpu_this_thread;
static inline const void *vgpu_stream_thread(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? &vgpu_this_thread : NULL;
}

/* Some launch is between the gate and the driver; with gate.lock held. A drop while one
 * is there leaves more that left than entered. */
static inline bool vgpu_batch_held(const struct vgpu_stream_batch *b)
{
	return (int32_t)(b->entered - __atomic_load_n(&b->left, __ATOMIC_ACQUIRE)) > 0;
}

struct gate;

struct gate_context {
	CUcontext ctx; /* NULL: free */
	struct gate *gate;
	/* So many calls that may end it have not returned: its events may be gone. */
	unsigned ends;
	uint64_t used; /* gate.uses at its last launch that had to look for a lane */
	/* Union of busy time over streams, on a time line that starts at anchor. */
	CUevent anchor, next_anchor;
	bool anchored, next_recorded;
	uint64_t anchor_host_ns;
	struct vgpu_cover cover;
};

struct lane {
	struct gate_context *context; /* NULL: free */
	CUstream stream;              /* NULL: destroyed */
	/* Only this thread can record in the stream, or NULL: any. When another one had to
	 * close a batch, the next are marked at each launch. */
	const void *thread;
	bool marks;
	struct vgpu_stream_batch ring[RING];
	unsigned first, closed; /* closed batches in flight */
	bool open;              /* ring[(first + closed) % RING] takes launches */
	bool busy;              /* an event is to be recorded, without the lock */
	bool recording;         /* and the driver does */
	/* For so long it had work in flight while launches of other streams were held: that
	 * work may have been waiting for them. */
	uint64_t held_ns;
	uint64_t foreign_ns; /* when something was last put into the stream that is no work */
	bool launched;       /* since the program last recorded an event in the stream */
	/* The stream has completed all entries that came before vgpu_other_entries had this value. */
	uint32_t passed_entries;
};

struct gate {
	pthread_mutex_t lock;
	int card;
	bool on;
	bool concurrent; /* the work of several jobs runs side by side on the card */
	struct vgpu_schedule schedule;
	uint64_t inflight_ns, more_ns; /* of all batches */
	uint64_t owed_ns;              /* of quick launches, not yet taken from the job's balance */
	uint64_t progress_ns;          /* when work was last seen to complete */
	uint64_t reaped_ns;            /* when completions were last asked for */
	uint64_t past_ns;              /* until then no launch goes past a budget that is used up */
	unsigned quick_left;           /* QUICK_MAX, less by what has gone by the last look */
	struct lane *last;             /* of the last launch, or NULL */
	uint64_t several_ns;           /* when several streams last had work at a time */
	/* Time that was the job's own, by the weights of all schedules up to own_at_ns. */
	uint64_t own_ns, own_at_ns;
	/* When last looked, so many other processes of the job had work on the card; and with
	 * other contexts of this one. */
	uint32_t procs, beside;
	uint64_t others_at_ns; /* since then the same neighbours are busy */
	/* The sum of the times of the last batches of parallel streams, and the time that they cover. */
	double spans_ns, covered_ns;
	/* Since then launches without a lane are not charged, and the job's own time then. 0: there are
	 * none. They are charged up to laneless_until_ns. Their context and stream; NULL: there are several. */
	uint64_t laneless_ns, laneless_own_ns, laneless_until_ns;
	CUcontext laneless_ctx;
	CUstream laneless_stream;
	/* Since then work that is not CUDA's is on the card and not charged (queues.c), and the
	 * job's own time then. 0: there is none. */
	uint64_t queues_since_ns, queues_own_ns;
	struct gate_context context[CONTEXTS];
	uint64_t uses;
	uint64_t host_bound_ns; /* end of the last batch that made the card wait for the host */
	/* gresd measures the part of such gaps in which the card did not work: 0 to 1. */
	bool gaps_measured;
	double gaps_idle;
	unsigned lanes; /* so many have been in use */
	struct lane lane[LANES];
};

/* Guards changes of vgpu_gate_any. It comes before the locks of the gates. */
extern pthread_mutex_t vgpu_any_lock;

/* How often completions are asked for at most, but for launches that wait. */
#define REAP_NS 200000u

/* A waiting launch or submission sleeps at least and at most this long. */
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 2000000u
/* It polls at least this often while work is in flight. */
#define POLL_NS 250000u
/* A launch of unknown length, or a submission, waits this long for work that makes no progress: that
 * work may wait for it. A launch also waits this long for a call that may end its context. */
#define STUCK_NS 50000000u

/* Work in flight that the gate cannot stop any more. */
#define QUANTUM_NS 1000000u
/* Credit an idle job may save: a short burst goes through undisturbed. */
#define BURST_NS 5000000

/* Work of so many nanoseconds goes past the budget: it pays by time, in which none does. */
static inline void vgpu_gate_past(struct gate *g, uint64_t ns, uint64_t now)
{
	uint64_t cores = g->schedule.cores ? g->schedule.cores : 1;

	g->past_ns = (g->past_ns > now ? g->past_ns : now) + ns * 100 / cores * (1 + g->procs);
}

/* Work of this process and of the job made progress. */
static inline void vgpu_gate_progress(struct gate *g, uint64_t now)
{
	g->progress_ns = now;
	__atomic_store_n(&vgpu_state.cache.header->progress_ns[g->card], now, __ATOMIC_RELAXED);
}

/* The job has the card for itself, and only its budget throttles it. */
static inline bool vgpu_only_budget(const struct gate *g)
{
	return g->schedule.gate == VGPU_GATE_BUDGET && !g->concurrent && !g->schedule.others;
}

/* The card waits for the host between launches: for so long after a batch that shows it. Then the
 * next batch of several launches tells. */
#define GAPS_NS 100000000u

static inline bool vgpu_host_bound(const struct gate *g, uint64_t now)
{
	return now - g->host_bound_ns < GAPS_NS;
}

/* Other streams may have run in the batch's time. */
static inline bool vgpu_streams_beside(const struct gate *g, const struct vgpu_stream_batch *b)
{
	return g->several_ns >= b->opened_ns;
}

static inline bool vgpu_several_lanes(const struct gate *g)
{
	unsigned n = 0;

	for (unsigned i = 0; i < g->lanes; i++)
		n += g->lane[i].closed != 0 || g->lane[i].open;
	return n > 1;
}

/* This thread is in the gate: what a callback of the driver's launches is refused. */
extern __thread bool vgpu_inside __attribute__((tls_model("initial-exec")));

/* What a callback of the driver's calls meanwhile is no part of what this thread does here. */
static inline void vgpu_gate_hold(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	vgpu_inside = true;
}

static inline void vgpu_gate_release(struct gate *g)
{
	vgpu_inside = false;
	pthread_mutex_unlock(&g->lock);
}

#endif
