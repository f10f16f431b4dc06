/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limiter.h - the state of the budget gate, shared by limiter.c (enter and leave),
 * wait.c (when may a launch go), measure.c (is it measured) and batch.c (what did it cost).
 *
 * A lane is one stream of one context. Its launches form batches: an event
 * before, an event after. The end of a batch that is still running is the
 * start of the next, so a saturated stream costs one event per batch.
 * What is not marked is guarded by gate.lock. To record an event may block, as long as the
 * stream is full: the lock is free then, and the lane is busy, which nobody else touches. The
 * other event calls do not block and are made with the lock held; a profiler's callback that
 * comes from one finds vgpu_inside.
 */
#ifndef VGPU_LIMITER_H
#define VGPU_LIMITER_H

#include "cover.h"
#include "vgpu.h"

#define LANES 32
#define RING 16
#define FUNCS 16
#define CONTEXTS 16

/* A batch is closed when it holds this much estimated work. */
#define BATCH_NS 500000u
/* Launches of kernels shorter than this may have host gaps between them. */
#define SHORT_NS 300000u
/* Batches of kernels up to this length hold so many that their sum is well known. */
#define BRIEF_NS 20000u

struct vgpu_stream_batch {
	CUevent own_start, end, start; /* start: own_start, or the end before */
	uint64_t est_ns;
	/* Host times: before and after the start event is recorded, the first launch has
	 * returned, no launch came after it, the end event is recorded. */
	uint64_t asked_ns, opened_ns, first_ns, last_ns, recorded_ns;
	uint64_t own_ns, divided_ns;  /* of the gate when it was opened */
	uint64_t held_ns, foreign_ns; /* of the lane then */
	uint32_t launches;            /* entered the gate, and did not fail */
	uint32_t entered;             /* the gate, with the lock held */
	uint32_t left;   /* of them, those that were launched; grows without the lock */
	uint32_t ticked; /* launches when the watcher last looked */
	uint32_t nfuncs;
	uint32_t beside; /* so many other processes of the job, or contexts, had work on the card */
	bool tight;      /* began while the batch before was running */
	bool solid;      /* and was launched as a whole meanwhile: the card had no gap in it */
	bool foreign;    /* something that is no work is between its launches */
	bool single;     /* of one launch: closed at once */
	uint32_t marked; /* so many launches are before its end event; lane.marks */
	bool waits;      /* of one launch, in which the driver may wait: closed at once */
	bool learns;     /* of one function without an estimate: closed at once */
	bool unmeasured; /* no events: the estimate is the charge */
	bool trusted;    /* and that on purpose */
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
	/* Union of busy time over streams, on a time line that starts at anchor. */
	CUevent anchor, next_anchor;
	bool anchored, next_recorded;
	uint64_t anchor_host_ns;
	struct vgpu_cover cover;
};

/* The end of the last measured batch of a lane. Work that went by its estimates since then is
 * unproven: its time is seen when another batch is measured. */
struct proof {
	CUevent end;
	uint64_t host_ns;    /* it was recorded later than that; 0: there is none */
	uint64_t since_ns;   /* when the batch was opened */
	uint64_t own_ns;     /* of the gate then */
	uint64_t charged_ns; /* of the gate, with that batch */
	bool unproven;
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
	struct proof proof;
	uint64_t foreign_ns; /* when something was last put into the stream that is no work */
};

struct gate {
	pthread_mutex_t lock;
	int card;
	bool on;
	struct vgpu_schedule schedule;
	uint64_t inflight_ns;
	uint64_t owed_ns;      /* of quick launches, not yet taken from the job's balance */
	uint64_t progress_ns;  /* when work was last seen to complete */
	uint64_t reaped_ns;    /* when completions were last asked for */
	unsigned quick_left;   /* QUICK_MAX, less by what has gone by the last look */
	struct lane *last;     /* of the last launch, or NULL */
	uint64_t other_ns;     /* when a launch last went to another lane than the one before */
	uint64_t several_ns;   /* when several streams last had work at a time */
	unsigned trust_left;   /* so many batches more may be charged by their estimates */
	uint64_t charged_ns;   /* by measured time or by estimates */
	uint64_t surprised_ns; /* when a host last waited for longer than the estimates say */
	uint64_t gated_ns;     /* when another gate began: launches may have passed without one */
	double usual_gap_ns;   /* median of what a first launch takes the host */
	/* Time that was the job's own, by the weights of all schedules up to own_at_ns. */
	uint64_t own_ns, own_at_ns;
	/* When last looked, so many other processes of the job had work on the card; and with
	 * other contexts of this one. */
	uint32_t procs, beside;
	/* The time divided by their number and this one, up to divided_at_ns. */
	uint64_t divided_ns, divided_at_ns;
	float waited; /* of the last batches, the part in which the card can have waited for
		       * the host for half of the time */
	uint64_t others_at_ns; /* since then the same neighbours are busy */
	/* What work that was charged by estimates was charged too little, by the time that
	 * it took; bounded. */
	double short_ns;
	double idle_ns; /* covered by batches of streams beside each other, and not charged */
	struct gate_context context[CONTEXTS];
	unsigned lanes; /* so many have been in use */
	struct lane lane[LANES];
};

/* How often completions are asked for at most, but for launches that wait. */
#define REAP_NS 200000u

/* Work in flight that the gate cannot stop any more. */
#define QUANTUM_NS 1000000u
/* Credit an idle job may save: a short burst goes through undisturbed. */
#define BURST_NS 5000000
/* A cost is well known that was learned from so many batches. */
#define SURE_SAMPLES 32

/* Its batches say little of what kernels cost: as much as the host takes to launch them. */
static inline bool vgpu_host_bound(const struct gate *g)
{
	return g->waited > 0.5f;
}

/* charge.c; both with gate.lock held.
 * The job's own time up to now, in nanoseconds: wall time, multiplied by its weight
 * while other jobs had work on the card. */
uint64_t vgpu_gate_own(const struct gate *g, uint64_t now);
/* s holds from now on. */
void vgpu_gate_follow(struct gate *g, const struct vgpu_schedule *s, uint64_t now);

/* wait.c; all with gate.lock held. */
/* Looks how many other processes of the job, and other contexts of this one, have work on the
 * card: at least at each tick, for the time since the last look is divided by their number. */
void vgpu_gate_beside(struct gate *g, uint64_t now);
bool vgpu_takes_turns(const struct gate *g);
/* Work that a process may have in flight, in nanoseconds. */
uint64_t vgpu_quantum(const struct gate *g);
/* Waits, with the lock released while asleep, until work of est nanoseconds may go into a
 * stream of a context.
 * *went: the time at which it may. *events: event calls are allowed then (no capture is
 * open). Returns what to leave the order with (vgpu_order_leave) when the work has been
 * charged. */
uint64_t vgpu_gate_wait(struct gate *g, CUcontext ctx, CUstream stream, uint64_t est, bool *events,
			uint64_t *went);
/* Tells gresd when the job's work will be done; the watcher's, in turns. */
void vgpu_gate_turns(const struct gate *g, uint64_t now);

/* charge.c; with gate.lock held. What a completed batch is charged, in nanoseconds.
 * busy: the time that it took, without what other streams were charged for. held: for so
 * long launches that it may have waited for were held back. */
uint64_t vgpu_batch_charge(struct gate *g, struct vgpu_stream_batch *b, double span, double busy,
			   double slack, double held, uint64_t now);

/* Of so many nanoseconds up to now in which this process had work on the card, those that are
 * not counted for the job yet: they are now. */
double vgpu_gate_count(struct gate *g, double ns, uint64_t now);

/* What work is charged that was launched in this batch or behind it in its lane, and will not
 * be measured. */
uint64_t vgpu_batch_unseen(struct gate *g, const struct vgpu_stream_batch *b, uint64_t now);

/* What work of the lane was charged too little by its estimates, at least: it took the time
 * from the lane's proof to the batch's start, less the host's and what was charged since. */
uint64_t vgpu_batch_beyond(struct gate *g, const struct lane *l, const struct vgpu_stream_batch *b,
			   uint64_t now);

/* This thread is in the gate: what a callback of the driver's launches is refused. */
extern __thread bool vgpu_inside __attribute__((tls_model("initial-exec")));

/* event.c; all with gate.lock held, and not while vgpu_events_barred(). False: the driver refused. */
/* Makes the event if need be. Releases the lock meanwhile, and the lane is busy. Not in a stream
 * that is captured, nor in one that waits for such a stream. */
bool vgpu_event_record(struct lane *l, CUevent *slot);
/* Waits until no event of the lane is being recorded, but not for ever: the stream may be full
 * of work that waits for what the caller does next. */
void vgpu_event_wait(struct gate *g, const struct lane *l);
/* The same until none is on its way to the driver. */
void vgpu_event_recorded(struct gate *g, const struct lane *l);
/* The lane of the next launch. While another thread records in it, this launch waits too, as it
 * would for the full stream. NULL: there is none, or a capture has begun. */
struct lane *vgpu_lane_free(struct gate *g, CUcontext ctx, CUstream stream);
/* Harmless to captures that are not known. */
CUresult vgpu_event_query(CUevent e);
/* The stream may be full, so that a record would wait. */
bool vgpu_event_blocks(const struct lane *l);
bool vgpu_event_between(double *ns, CUevent from, CUevent to);
/* Events are of the context that is current when they are made, and so is the default stream
 * in which they are recorded. True: it is the lane's now, until vgpu_event_leave(). */
bool vgpu_event_enter(const struct lane *l, bool *pushed);
void vgpu_event_leave(bool pushed);

/* The one of a context, or NULL. */
struct gate_context *vgpu_context_find(struct gate *g, CUcontext ctx);
/* Before and after a call that may end the context; gone: it has. */
void vgpu_context_ends(struct gate *g, CUcontext ctx);
void vgpu_context_ended(struct gate *g, CUcontext ctx, bool gone);

/* measure.c; all with gate.lock held. */
/* So may a launch join a trusted batch. */
bool vgpu_measure_known(uint32_t samples, uint64_t est_ns);
/* Whether a batch that opens now goes by its estimates. */
bool vgpu_measure_trust(struct gate *g, const struct lane *l, bool known, uint32_t beside,
			uint64_t now);
/* Whether a launch that opens a batch, and whose cost is known, is to be measured alone. */
bool vgpu_measure_alone(const struct gate *g, const struct lane *l, const struct vgpu_cost *cost,
			uint64_t est_ns, uint64_t now);
/* The same of any launch, as far as that is not left to chance. balance_ns: of the job's
 * budget. */
bool vgpu_measure_unproven(const struct gate *g, const struct vgpu_cost *cost, uint64_t est_ns,
			   int64_t balance_ns);

/* batch.c; all with gate.lock held. */
/* The lane of a stream in the current context, or NULL when none is free. */
struct lane *vgpu_lane_of(struct gate *g, CUcontext ctx, CUstream stream);
/* The batch that takes the next launch, opened if need be. samples: what is
 * known of the launch's cost, est_ns. */
struct vgpu_stream_batch *vgpu_batch_open(struct gate *g, struct lane *l,
					  const struct vgpu_cost *cost, uint32_t samples,
					  const struct vgpu_launch *launch, uint64_t now);
/* Ends the open batch unless a launch is between gate and driver. Whatever context is
 * current. */
void vgpu_batch_close(struct lane *l);
/* Puts an event behind work that went by its estimates, if there is some and nothing else
 * will tell how long it took. */
void vgpu_batch_prove(const struct gate *g, struct lane *l);
/* The same, where this thread can see to it that the batch is measured. */
void vgpu_batch_end(struct lane *l);
/* Records the end of the open batch behind its last launch; of a lane with marks. */
void vgpu_batch_mark(struct lane *l);
/* Takes completed batches off, charges them, learns. */
void vgpu_batch_reap(struct gate *g, uint64_t now);
/* Empties a lane. What is left of it is charged by its estimates, and at least the time since
 * it was launched: no event will tell. */
void vgpu_lane_drop(struct gate *g, struct lane *l);
/* The stream of a lane ends: nothing comes any more, and what has come is measured. */
void vgpu_lane_end(struct gate *g, struct lane *l);

#endif
