/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - the simulated machine: cards, processes, contexts, streams, work.
 *
 * One file, mapped by every process that uses the simulated driver, holds the
 * whole model. A process changes it only under the file's lock. There is no
 * server: whoever holds the lock first advances the cards to the present
 * (sched.c), so a card goes on working however late its users are scheduled.
 *
 * Words. Card: one simulated GPU, or one MIG instance of it, which has its own
 * memory and its own scheduler; instances come after all GPUs. Context: one compute channel group on one
 * card (the unit that the card's scheduler gives time slices to). Stream: a
 * first-in first-out queue of a context. Op: one entry of a stream. Effect:
 * what an op does in its owner's memory when it is done; only the owner can
 * apply it, so a done op with an effect stays in the ring until it is taken.
 *
 * What a SIGKILL can leave behind. A process is alive while it holds the
 * byte lock at SIM_LOCK_BASE + its slot (fcntl; released by the kernel at
 * exit and exec, whatever the PID namespace); slots of others are cleared by
 * whoever looks (sim_reap). The model's own mutex is robust. Nothing is kept
 * twice: rings are written before their index moves, and used memory is the
 * sum over live processes.
 *
 * Units: nanoseconds of CLOCK_MONOTONIC, bytes, microseconds where named _us.
 */
#ifndef SIMGPU_MODEL_H
#define SIMGPU_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC 0x55504758554d4953ull
#define SIM_VERSION 14u
#define SIM_MAX_CARDS 16
#define SIM_MAX_PROCS 256
#define SIM_MAX_CTX 512
#define SIM_MAX_STREAMS 1024
#define SIM_RING 1024 /* ops one stream can hold, as on the real driver */
#define SIM_MAX_FAULTS 16
#define SIM_MAX_XIDS 64
#define SIM_MAX_LIMITS 64
#define SIM_MAX_EXPORTS 512 /* allocations that have ever been exported and are still there */
#define SIM_FOLDER 256      /* the name of a cgroup */
#define SIM_SAMPLES 256
#define SIM_SWITCHES 32768 /* context switches that a card remembers */
#define SIM_LOCK_BASE (1ull << 40)
#define SIM_NEVER UINT64_MAX
#define SIM_SAMPLE_NS 100000000ull /* one utilisation sample */

/* A link between two cards: the way over PCI in the low byte, nearest last, and
 * the number of NVLinks above it. */
#define SIM_LINK_SYS 0u
#define SIM_LINK_NODE 1u
#define SIM_LINK_PHB 2u
#define SIM_LINK_PXB 3u
#define SIM_LINK_PIX 4u
#define SIM_LINK_INT 5u
#define SIM_LINK_PCI(link) ((link) & 0xffu)
#define SIM_LINK_NV(link) ((link) >> 8)

enum sim_kind {
	SIM_KERNEL, /* takes the card's compute time */
	SIM_COPY,   /* runs beside compute */
	SIM_MARK,   /* no time, but its context's turn: event record, write-value, ordered free */
	SIM_WAIT,   /* until another stream has passed a point */
	SIM_OWNER,  /* until its owner says so: host function, wait-value */
};

#define SIM_OP_URGENT 1u /* its effect must be applied without any call by the owner */
#define SIM_OP_SPIN 2u   /* kernel without an end: its owner ends it */
#define SIM_OP_INSIDE 4u /* copy or fill within the card: it keeps its memory busy */

enum sim_op_state { SIM_QUEUED, SIM_STARTED, SIM_FINISHED };

struct sim_op {
	uint32_t kind;
	uint32_t flags;
	uint32_t state;
	uint32_t dep_stream;
	uint32_t dep_gen;
	uint32_t part; /* of the card that a kernel needs, in millionths; 0: all of it */
	uint64_t dep_index;
	uint64_t seq;      /* order of submission in its context */
	uint64_t ready_ns; /* cannot start before */
	uint64_t left_ns;  /* device time still to do */
	uint64_t done_ns;
	uint64_t cum_ns; /* kernel time queued in this stream up to and with this op */
	uint64_t cookie; /* owner's pointer to the effect; 0: none */
};

/* Ring indices only grow: taken <= done <= tail. [taken, done) is done and
 * waits for its owner to take the effects; [done, tail) is queued. */
struct sim_stream {
	uint32_t used;
	uint32_t gen;
	uint32_t ctx;
	uint32_t next; /* next stream of the context, slot + 1 */
	uint32_t legacy;
	uint32_t nonblocking;
	int32_t priority;
	uint32_t pad;
	uint64_t tail, done, taken;
	uint64_t cum_ns;  /* kernel time queued so far */
	uint64_t exec_ns; /* kernel time worked off so far */
};

struct sim_ctx {
	uint32_t used;
	uint32_t proc;
	uint32_t card;
	uint32_t next;    /* next context of the card, slot + 1 */
	uint32_t streams; /* first stream, slot + 1 */
	uint32_t run;     /* stream whose kernel was started last, slot + 1; 0: none */
	uint32_t usable;
	uint32_t server;  /* the MPS server that its work goes through, by process id; 0: none */
	uint32_t faulted; /* by a fault of another client of its server */
	uint32_t pad;
	uint64_t slice_us;
	uint64_t aux_slice_us[3]; /* the groups that do no work */
	uint64_t seq;
	uint64_t busy_ns; /* device time given */
	uint64_t turns;   /* times it was switched in */
	uint64_t sampled_ns;
};

struct sim_proc {
	uint32_t used;
	int32_t pid;         /* as the process knows itself */
	uint64_t start_time; /* clock ticks since boot */
	char name[32];
	uint64_t mem[SIM_MAX_CARDS];
	uint64_t space; /* of a client of an MPS server, its byte in nvidia-uvm; 0: none */
	/* For how long its threads were without a processor that they wanted, see libcuda/late.c. It is
	 * kept after the end, until another process has the slot. */
	uint64_t late_ns;
	/* cuda-checkpoint: */
	uint32_t state;      /* enum CUprocessState */
	uint32_t asked;      /* enum sim_ask, by another process; a futex, for both */
	uint32_t timeout_ms; /* of what is asked; 0: none */
	int32_t answer;      /* CUresult, when asked is 0 again */
	int32_t restorer;    /* the thread that answers */
};

enum sim_ask { SIM_ASK_NOTHING, SIM_ASK_LOCK, SIM_ASK_CHECKPOINT, SIM_ASK_RESTORE, SIM_ASK_UNLOCK };

struct sim_sample {
	uint64_t time_us; /* CLOCK_REALTIME */
	int32_t pid;      /* sim_proc.pid */
	uint16_t percent;
	uint16_t proc; /* its slot then */
};

/* A context switch, as the card's scheduler writes it down. */
struct sim_switch {
	uint64_t at_ns;      /* the card's clock: since 1970 */
	uint64_t start_time; /* of the process, which may have ended since */
	int32_t pid;         /* sim_proc.pid */
	uint16_t proc;       /* its slot then */
	uint16_t came;       /* else it left */
};

/* Whether the driver hands out the records of context switches. */
enum sim_records { SIM_RECORDS, SIM_RECORDS_UNSUPPORTED, SIM_RECORDS_DENIED, SIM_RECORDS_V1 };

struct sim_card_config {
	char name[64];
	char type[32];
	char uuid[48];
	char pci[32]; /* 00000000:01:00.0 */
	uint32_t minor;
	int32_t numa;
	uint32_t sms;
	uint32_t cc_major, cc_minor;
	uint32_t slice_us;
	uint64_t memory;
	uint64_t reserved; /* part of memory that the driver keeps */
	uint64_t context_cost;
	uint64_t switch_ns;       /* lost at each change of context */
	uint64_t switch_away_ns;  /* its first part: nobody is on the card, by the records */
	uint64_t switch_slice_ns; /* its last part: the new slice has begun */
	uint64_t change_ns;       /* what a change of a slice costs a card that works */
	uint64_t latency_ns;      /* launch to first possible start */
	uint64_t gap_ns;          /* between kernels */
	uint64_t kernel_ns;       /* kernels of unknown length */
	uint64_t copy_bytes_per_ms;
	uint32_t link[SIM_MAX_CARDS];
	uint32_t nvswitch;       /* NVLinks go to a switch */
	uint32_t mig;            /* NVML says that MIG mode is on */
	uint32_t records;        /* enum sim_records */
	uint32_t ignores_slices; /* all get slice_us, whatever was set */
	/* of a MIG instance: */
	uint32_t parent;         /* its GPU, card + 1; 0: it is a GPU */
	uint32_t gi, ci;         /* GPU instance and compute instance */
	uint32_t gi_cap, ci_cap; /* minor numbers of their capabilities' files */
	uint32_t gi_slices;
	char cpus[64]; /* list, as in 0-3,8 */
};

struct sim_card {
	struct sim_card_config conf;
	uint64_t now_ns;
	uint32_t contexts; /* first context, slot + 1 */
	uint32_t cur;      /* context on the card, slot + 1 */
	uint32_t lost;     /* the card has fallen off the bus */
	uint32_t came;     /* there is a record of cur */
	uint64_t slice_left_ns;
	uint64_t switch_left_ns;
	uint64_t change_left_ns; /* nothing runs for so long */
	uint64_t busy_ns;        /* kernels, switches, changes of slices */
	uint64_t work_ns;        /* kernels alone */
	uint64_t used_ns;        /* kernels, and copies within the card */
	uint64_t switches;
	uint64_t records; /* written so far; a ring, see sim_switch_at */
	uint64_t sample_at_ns;
	uint64_t sample_busy_ns;
	uint32_t util_percent;
	uint32_t nsamples;
	struct sim_sample sample[SIM_SAMPLES];
	uint64_t ecc_errors;
	uint32_t nxids; /* XID events reported so far; a ring */
	uint32_t pad2;
	struct {
		uint64_t xid, pid;
	} xid[SIM_MAX_XIDS];
};

/* What a test asked to go wrong. */
enum sim_fault_kind { SIM_FAULT_NONE, SIM_FAULT_CODE, SIM_FAULT_SLOW, SIM_FAULT_SLICES };

struct sim_fault {
	uint32_t kind;
	int32_t code;
	int32_t count; /* times still to happen; -1: always */
	int32_t pid;   /* 0: any process */
	uint64_t slow_ns;
	char call[48];
};

struct sim_ipc {
	uint64_t key;
	uint32_t proc;
	uint32_t card;
	uint64_t size;
};

/* An allocation that was exported. The card counts it for one process that has it. While only an
 * open file has it, it counts for no process. */
struct sim_export {
	uint64_t key; /* 0: free entry */
	uint64_t bytes;
	uint32_t card;
	uint32_t payer;    /* SIM_MAX_PROCS: no process */
	uint32_t exporter; /* SIM_MAX_PROCS: it has ended */
	uint32_t pad;
	uint8_t holder[SIM_MAX_PROCS];
};

/* What the processes of a cgroup may have of a card. */
struct sim_limit {
	char folder[SIM_FOLDER]; /* "": none */
	uint64_t inode;
	uint64_t most;
	uint32_t card;
	uint32_t pad;
};

struct sim_state {
	uint64_t magic;
	uint32_t version;
	uint32_t size;
	pthread_mutex_t lock;
	uint32_t ncards; /* with instances */
	uint32_t ngpus;  /* without */
	uint32_t nfaults;
	uint32_t pad;
	uint64_t reaped_ns;
	uint64_t next_key;
	uint64_t since_1970; /* of the cards' clock at 0 of this model's */
	uint64_t limits;     /* 0: there has never been one */
	struct sim_limit limit[SIM_MAX_LIMITS];
	struct sim_fault fault[SIM_MAX_FAULTS];
	struct sim_card card[SIM_MAX_CARDS];
	struct sim_proc proc[SIM_MAX_PROCS];
	struct sim_ctx ctx[SIM_MAX_CTX];
	struct sim_ipc ipc[SIM_MAX_CTX];
	struct sim_export export[SIM_MAX_EXPORTS];
	struct sim_stream stream[SIM_MAX_STREAMS];
	struct sim_op ring[SIM_MAX_STREAMS][SIM_RING];
	struct sim_switch record[SIM_MAX_CARDS][SIM_SWITCHES];
};

/* state.c: the file, its lock, processes, memory. Functions return 0 or a
 * slot, or -errno. All but the first four want the lock held. */
int sim_create(const char *path, const struct sim_card_config *cards, uint32_t n);
struct sim_state *sim_open(const char *path); /* NULL: errno says why */
struct sim_state *sim_attach(const void *symbol_in_library);
uint64_t sim_now(void);
void sim_lock(struct sim_state *st);
void sim_unlock(struct sim_state *st);
int sim_proc_add(struct sim_state *st);
int32_t sim_proc_pid(const struct sim_state *st, uint32_t proc);
void sim_proc_drop(struct sim_state *st, uint32_t proc);
void sim_reap(struct sim_state *st, bool now);
uint64_t sim_mem_used(const struct sim_state *st, uint32_t card);
int sim_mem_add(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes);
void sim_mem_sub(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes);
/* limits.c: path is the folder of a cgroup; most is UINT64_MAX for none. false: no limit counts. */
int sim_limit_set(struct sim_state *st, uint32_t card, const char *path, uint64_t most);
bool sim_limit_of(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t *most,
		  uint64_t *used);
int sim_ctx_add(struct sim_state *st, uint32_t proc, uint32_t card);
void sim_ctx_drop(struct sim_state *st, uint32_t ctx);
void sim_ctx_leave(struct sim_state *st, uint32_t ctx); /* its card; it keeps its slot */
int sim_stream_add(struct sim_state *st, uint32_t ctx, bool legacy, bool nonblocking, int priority);
void sim_stream_drop(struct sim_state *st, uint32_t stream);
/* true when the fault list wants this call to fail; *code and *slow_ns say how */
bool sim_fault_hit(struct sim_state *st, const char *call, int *code, uint64_t *slow_ns);
int sim_fault_add(struct sim_state *st, const struct sim_fault *f);
bool sim_slices_refused(struct sim_state *st);

/* state.c: the file of the machine */
int sim_descriptor(const struct sim_state *st);

/* export.c: memory that several processes have. sim_export_create makes the file whose descriptors
 * are exports. sim_export_add exports memory of a process: its number, or 0. sim_export_join gives a
 * process a reference, and sim_export_leave drops it (number 0: all). sim_export_open makes a
 * descriptor, or -1. sim_export_has_range makes a dma-buf keep an export, too. sim_export_named reads
 * the number of a descriptor. sim_export_is_open finds a descriptor of the number in any process.
 * sim_export_reap ends exports without any reference. */
void sim_export_create(const char *state);
uint64_t sim_export_add(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes);
bool sim_export_join(struct sim_state *st, uint32_t proc, uint64_t key, uint32_t *card,
		     uint64_t *bytes);
void sim_export_leave(struct sim_state *st, uint32_t proc, uint64_t key); /* 0: all */
int sim_export_open(const struct sim_state *st, uint64_t key);
bool sim_export_has_range(int fd, uint64_t key);
uint64_t sim_export_named(int fd);
bool sim_export_is_open(const struct sim_state *st, uint64_t key);
void sim_export_reap(struct sim_state *st);
uint64_t sim_export_unpaid(const struct sim_state *st, uint32_t card);
/* Bytes of unpaid exports whose exporter has ended. */
uint64_t sim_export_orphaned(const struct sim_state *st, uint32_t card);

/* space.c: the address spaces of clients of MPS servers; makes the file, opens one, and says
 * whether a process that has ended has kernels that go on. If not, and it has some, the others of
 * its server are faulted */
void sim_space_create(const char *state);
void sim_space_open(struct sim_state *st, uint32_t proc);
bool sim_space_works(struct sim_state *st, uint32_t proc);

/* suspend.c: all that a process has on cards leaves them, and comes back, if there is room for
 * it: else -ENOMEM */
void sim_proc_leave(struct sim_state *st, uint32_t proc, uint64_t had[SIM_MAX_CARDS]);
int sim_proc_return(struct sim_state *st, uint32_t proc, const uint64_t had[SIM_MAX_CARDS]);

/* together.c: contexts of one MPS server. Which are on the card at the same time; as sim_runnable,
 * for all of these; and their kernels run up to dt, or until the first has ended: the time that
 * has passed */
bool sim_together(const struct sim_state *st, uint32_t a, uint32_t b);
uint32_t sim_runnable_with(struct sim_state *st, uint32_t ctx, uint64_t now);
uint64_t sim_run_together(struct sim_state *st, uint32_t ctx, uint64_t now, uint64_t dt);

/* sched.c: the cards' own clockwork */
/* the stream whose mark or kernel the context runs next, slot + 1; 0: nothing to run. Marks come
 * first, also in front of a kernel that has been started */
uint32_t sim_runnable(struct sim_state *st, uint32_t ctx, uint64_t now);
/* a kernel at the head of its stream works for so long, up to a time */
void sim_work(struct sim_state *st, uint32_t stream, struct sim_op *o, uint64_t ns, uint64_t at);
void sim_advance(struct sim_state *st, uint32_t card, uint64_t until);
void sim_advance_all(struct sim_state *st);
/* the card must have been brought up to the present */
void sim_set_slice(struct sim_state *st, uint32_t ctx, uint64_t us);
/* writes down that a context comes to its card, or leaves it, at the card's present */
void sim_note(struct sim_state *st, uint32_t ctx, bool came);
int sim_push(struct sim_state *st, uint32_t stream, const struct sim_op *op, uint64_t *index);
/* ends a SIM_OWNER op or a SIM_OP_SPIN kernel at the head of the stream */
void sim_finish(struct sim_state *st, uint32_t stream);
/* earliest time at which op index of the stream can be done, as things stand */
uint64_t sim_predict(const struct sim_state *st, uint32_t stream, uint64_t index);
bool sim_busy(const struct sim_state *st, uint32_t ctx);
/* a queued op of the context submitted no later than seq: the last one of its stream */
bool sim_pending(const struct sim_state *st, uint32_t ctx, uint64_t seq, uint32_t *stream,
		 uint64_t *index);

static inline struct sim_op *sim_op_at(struct sim_state *st, uint32_t stream, uint64_t index)
{
	return &st->ring[stream][index % SIM_RING];
}

/* The slice that the card gives a context, in nanoseconds. */
static inline uint64_t sim_slice_ns(const struct sim_state *st, uint32_t ctx)
{
	const struct sim_ctx *x = &st->ctx[ctx];
	const struct sim_card_config *c = &st->card[x->card].conf;

	return (c->ignores_slices ? c->slice_us : x->slice_us) * 1000;
}

/* Of the last SIM_SWITCHES records of a card that were written. */
static inline struct sim_switch *sim_switch_at(struct sim_state *st, uint32_t card, uint64_t index)
{
	return &st->record[card][index % SIM_SWITCHES];
}

/* Whether a card is a GPU or an instance of it. */
static inline bool sim_is_of(const struct sim_state *st, uint32_t card, uint32_t gpu)
{
	return card == gpu || st->card[card].conf.parent == gpu + 1;
}

/* The card's first instance; ncards where it has none. */
static inline uint32_t sim_first_instance(const struct sim_state *st, uint32_t gpu)
{
	uint32_t i = st->ngpus;

	while (i < st->ncards && st->card[i].conf.parent != gpu + 1)
		i++;
	return i;
}

#endif
