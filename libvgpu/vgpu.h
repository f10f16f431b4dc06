/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu.h - what the files of libvgpu.so share, grouped by the defining file.
 *
 * The library is a guest in somebody else's process: it never exits, never
 * prints to stdout, takes no signals, creates no CUDA context, and starts
 * nothing before the first CUDA or NVML call. Inside, functions return 0 or
 * -errno; only the hooks speak CUresult.
 */
#ifndef VGPU_H
#define VGPU_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "config.h"
#include "cuda_abi.h"
#include "region_ops.h"

#define VGPU_EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* What runs before the runtime of a sanitizer is ready; nothing in a plain build. */
#define VGPU_EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

/* Prototypes of the hooks, from hooks.def. */
#define CU(name, params) VGPU_EXPORT CUresult name params;
#define NV(name, params) VGPU_EXPORT nvmlReturn_t name params;
#define CU_USE(name, params)
#define NV_USE(name, params)
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE

/* entry.c: the real functions. A member is NULL until its library is loaded,
 * and stays NULL when the driver does not have it. */
struct vgpu_real {
#define CU(name, params) CUresult(*name) params;
#define NV(name, params) nvmlReturn_t(*name) params;
#define CU_USE(name, params) CUresult(*name) params;
#define NV_USE(name, params) nvmlReturn_t(*name) params;
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE
};
extern struct vgpu_real vgpu_real;
/* Loads libcuda (libnvidia-ml) if it is not, and resolves the table once.
 * Both are safe from any thread and cheap when done. */
void vgpu_need_cuda(void);
void vgpu_need_nvml(void);
/* After a fork, in the child: unlocked; its first CUDA call attaches it. */
void vgpu_entry_in_child(void);

/* loader.c: the C library's functions, NULL until vgpu_need_dlsym or a first lookup, and
 * where the program has none (glibc before 2.34, without libdl). */
void vgpu_need_dlsym(void);
/* A function of the C library, whatever preload has one of the name before it; NULL: none. */
void *vgpu_of_libc(const char *name);
extern void *(*vgpu_real_dlsym)(void *handle, const char *name);
extern void *(*vgpu_real_dlvsym)(void *handle, const char *name, const char *version);
/* The C library's dlopen, or another preload's that comes after this one. */
void *vgpu_dlopen(const char *file, int mode);
/* For dlsym to return NULL, where NULL leaves the answer to the C library. */
#define VGPU_NOTHING ((void *)-1)
/* What this library exports as dlsym, dlvsym, dlopen and dlmopen. */
void *vgpu_dlsym(void *handle, const char *name);
void *vgpu_dlvsym(void *handle, const char *name, const char *version);
void *vgpu_own_dlopen(const char *file, int mode);
void *vgpu_own_dlmopen(long ns, const char *file, int mode);
/* Which of them stands for the function that handle leads to; NULL: none. */
void *vgpu_loader_hook(void *handle, const char *name, const char *version);

/* The default stream, by the handle that event calls take for it. */
static inline CUstream vgpu_stream(CUstream s, bool per_thread)
{
	return s ? s : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* state.c: this process's part of the grant and the cache. */
struct vgpu_state {
	const struct vgpu_grant *grant; /* NULL: no limits here */
	struct vgpu_cache cache;
	struct vgpu_slot *slot; /* NULL when there is no grant */
	bool counted;           /* false: the slot is no part of the cache, nothing is given */
	unsigned ncards;
	bool from_env; /* grant made from environment variables, no gresd behind it */
};
extern struct vgpu_state vgpu_state;
/* Finds and maps grant and cache, claims a slot. Once a process; afterwards vgpu_state is
 * read-only but for the slot. A forked child has none, and gets no memory, until it is
 * called again: many children never use CUDA. */
void vgpu_attach(void);
/* Card of a CUDA device, of the current context, of an NVML handle, or of a
 * UUID; -1 when the grant does not have it. */
int vgpu_card_of_device(CUdevice dev);
/* A device that the job's grant does not name, as a job can see one where Slurm's
 * device cgroup is off: it is to get no context and no memory there. */
bool vgpu_not_granted(CUdevice dev);
int vgpu_card_asked(void);
/* The card of the only device that CUDA shows; -1 when there are several, or not
 * known yet. Then no driver call is needed to tell which one is meant: where no
 * context is current, the call that this is asked for fails by itself. */
extern int vgpu_only_card;
static inline int vgpu_card_current(void)
{
	int only = __atomic_load_n(&vgpu_only_card, __ATOMIC_RELAXED);

	return likely(only >= 0) ? only : vgpu_card_asked();
}
int vgpu_card_of_nvml(nvmlDevice_t device);
uint64_t vgpu_limit(int card);
/* Grant from the environment: as many cards as CUDA shows. */
void vgpu_env_cards(void);
static inline struct vgpu_slot_card *vgpu_my(int card)
{
	return &vgpu_state.slot->card[card];
}
uint64_t vgpu_now(void);

/* A thread that is cancelled while it waits in the library would leave locks and counters
 * behind. Returns what vgpu_cancel_as() puts back. */
static inline int vgpu_no_cancel(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}
static inline void vgpu_cancel_as(int before)
{
	pthread_setcancelstate(before, NULL);
}

/* context.c: a context is there that no hook saw being made; a forked child has none. */
void vgpu_context_seen(int card);
void vgpu_contexts_in_child(void);
/* The context that memory which is taken now ends with; a green one's is the primary's. */
uint64_t vgpu_context_owner(int card);

/* config.c: a grant from HAMi-style environment variables. Returns false when
 * none is set; a value that cannot be understood is said on stderr and gives
 * the strictest limit, not none. */
bool vgpu_grant_from_env(struct vgpu_grant *g);

/* table.c: process-local map from an address or handle to what it holds. */
struct vgpu_item {
	uint64_t key, size, other;
	uint64_t owner; /* what it ends with: vgpu_context_owner; 0: only by itself */
	int card;
	unsigned refs;
	struct vgpu_item *next;
};
struct vgpu_table {
	pthread_mutex_t lock;
	struct vgpu_item **bucket, *spare;
	size_t buckets, count;
	struct vgpu_table *next; /* of all that were ever used */
	bool listed;
};
#define VGPU_TABLE_INIT                           \
	{                                         \
		.lock = PTHREAD_MUTEX_INITIALIZER \
	}
/* Adds an entry; false when there is no memory for it. */
bool vgpu_table_put(struct vgpu_table *t, const struct vgpu_item *item);
bool vgpu_table_get(struct vgpu_table *t, uint64_t key, struct vgpu_item *out);
bool vgpu_table_take(struct vgpu_table *t, uint64_t key, struct vgpu_item *out);
/* Adds to the reference count; *out is the entry after it, already removed
 * when the count has come to zero. False when there is no such key. */
/* After a fork, in the child: all tables are empty and unlocked. */
void vgpu_tables_in_child(void);
bool vgpu_table_ref(struct vgpu_table *t, uint64_t key, int by, struct vgpu_item *out);
/* Asks of each entry, with the lock held, whether it goes. */
void vgpu_table_sweep(struct vgpu_table *t, uint64_t owner,
		      bool (*goes)(const struct vgpu_item *, uint64_t owner));

/* memory.c: the steps around an allocation. take announces the bytes and says
 * 0, or -ENOMEM when they do not fit; then the driver is asked; then done keeps
 * the bytes or, when the driver refused, takes them back, and returns r. */
int vgpu_mem_take(int card, uint64_t bytes);
CUresult vgpu_mem_done(int card, uint64_t bytes, CUresult r);
/* Adds up a change of the charge in one step, so that nobody sees less than both ends. */
void vgpu_charge_moves(int card, uint64_t from, uint64_t to);
/* Around a call that gives memory back. */
void vgpu_mem_begin(void);
void vgpu_mem_end(void);
/* Bytes, without a driver call around them. */
int vgpu_charge(int card, uint64_t bytes);
void vgpu_release(int card, uint64_t bytes);
void vgpu_charge_forced(int card, uint64_t bytes);
/* Raises *charged, a sum of charges that several threads move, to at least want;
 * 0 or -ENOMEM. */
int vgpu_charge_up_to(int card, uint64_t *charged, uint64_t want);
/* Lowers *charged to at most want, but to no less than what of says of *live: another
 * thread may count on the charge. */
void vgpu_charge_down_to(int card, uint64_t *charged, uint64_t want, const uint64_t *live,
			 uint64_t (*of)(uint64_t));
/* Counts the refusal and returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vgpu_oom(int card, uint64_t bytes);
/* Bytes of managed memory that this process holds. */
extern uint64_t vgpu_managed_bytes;
/* Makes free and total of a card, as the driver says them, what the job is told: a
 * card as large as its limit. Only where there is a limit. */
void vgpu_told(int card, uint64_t *free, uint64_t *total);
/* What ended with a context, by kind: its charges. */
void vgpu_linear_ended(uint64_t owner);
void vgpu_arrays_ended(uint64_t owner);
void vgpu_modules_ended(uint64_t owner);
void vgpu_graphs_settle(int card, CUdevice dev);
/* All that counts for the job on a card: slots, and what gresd measured beside. */
uint64_t vgpu_mem_used(int card);

/* overhead.c: memory that no allocation call asks for. */
/* Before a context of a card is made: its cost, 0 or -ENOMEM. */
int vgpu_overhead_context(int card);
void vgpu_overhead_context_gone(int card);
/* Compares with the card's own count of this process and corrects the charge. */
void vgpu_overhead_measure(int card);
/* The card's own count of this process, and what it takes beside. False when the
 * process is not listed. The first call opens NVML. */
bool vgpu_overhead_counted(int card, uint64_t *bytes);
/* Without gresd the watcher measures all; with it gresd does, and the watcher only
 * what modules were charged. */
void vgpu_overhead_in_child(void);
void vgpu_overhead_tick(uint64_t now);

/* memory_module.c: what is charged for modules, and takes back at most so much. */
uint64_t vgpu_modules_charged(int card);
void vgpu_modules_lower(int card, uint64_t bytes);

/* A hash of two numbers, all of whose bits are good; never 0. A driver's handles
 * differ in few bits, so they are multiplied into all of them (xorshift-multiply). */
static inline uint64_t vgpu_mix(uint64_t a, uint64_t b)
{
	a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
	a = (a ^ a >> 32) * 0xd6e8feb86659fd93ull;
	a ^= a >> 32;
	return a ? a : 1;
}

/* first_use.c: a call for a handle (and a name in it, or NULL) in the current context;
 * 0: there is no context. To be asked for before the call is made. */
uint64_t vgpu_use_key(const char *call, const void *handle, const char *name);
/* That call was made before, went well and was noted; lossy. No locks. */
bool vgpu_used(uint64_t key);
void vgpu_use_note(uint64_t key);
/* Handles or contexts have gone: others may get their addresses. After they have. */
void vgpu_uses_forget(void);

/* The driver's pools grow in steps of this many bytes (measured: 580, H200). */
#define VGPU_POOL_STEP (32ull << 20)
/* memory_pool.c: bring charges to what the pools hold, if they may differ. */
void vgpu_pools_settle(void);
/* The watcher's look: the same, from time to time. */
void vgpu_pools_tick(uint64_t now);
/* A context has ended, and what was allocated in it, unless the driver says otherwise. */
void vgpu_pools_ended(uint64_t owner);
/* memory_pool.c: which pool is current on a device may have changed. */
void vgpu_pools_forget_current(void);
/* After a fork, in the child: unlocked. */
void vgpu_pools_in_child(void);
/* Charge of an asynchronous pointer that cuMemFree is given; false: not one. */
bool vgpu_pool_forget(CUdeviceptr dptr);

/* memory_shared.c: gives bytes back unless a descriptor of the handle is open;
 * looks again at those that were; a forked child has none. */
void vgpu_shared_release(uint64_t handle, int card, uint64_t bytes);
void vgpu_shared_settle(void);
void vgpu_shared_in_child(void);

/* memory_graph.c: a graph launch, with the memory that it allocates. */
CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream);
void vgpu_graph_forget(CUgraphExec graph);
/* After a fork, in the child: unlocked, and nothing is its. */
void vgpu_graphs_in_child(void);

/* limiter.c: the GPU-time budget. */
struct vgpu_launch {
	int card;   /* -1: not gated */
	bool waits; /* the driver may return when the work is done */
	bool refused;
	CUstream stream;
	uint64_t key; /* function and grid, or graph */
	struct vgpu_stream_batch *batch;
	struct lane *lane;
	uint64_t est_ns;
};
/* CUDA_LAUNCH_BLOCKING is set: every launch waits for its work. */
extern bool vgpu_launches_wait;
/* One flag for the whole process: some card of this job is gated now. */
extern uint32_t vgpu_gate_any;
/* Sets all of l but waits, which the caller says. */
void vgpu_gate_enter(struct vgpu_launch *l, CUstream stream, uint64_t key, uint64_t unknown_ns);
void vgpu_gate_leave(struct vgpu_launch *l, CUresult result);
/* Ends the open batch of a stream (CU_STREAM_LEGACY for the default one), or
 * of all streams when stream is NULL: work after it is another batch. other: what comes next
 * in the stream takes its time, but is no work of the card's. */
void vgpu_gate_boundary(CUstream stream, bool other);
/* Smaller copies and fills are not worth a look. */
#define SMALL_BYTES (64u << 10)
/* Returns when no thread of ours is at event calls any more that began before
 * vgpu_captures was raised. */
void vgpu_gate_capture(void);
/* A stream is about to go: its batches end. */
void vgpu_gate_drop_stream(CUstream stream);
/* A context may end in a call of the driver that follows: no event of it is touched until
 * vgpu_gate_ended(), which forgets it if it is gone. */
void vgpu_gate_ends(CUcontext ctx);
void vgpu_gate_ended(CUcontext ctx, bool gone);
/* The host has waited for work, since the time began: what took long is charged at once, for the
 * process may end now, and what took longer than it was taken for puts estimates in doubt. */
void vgpu_gate_waited(int card, uint64_t began);
/* Watcher's turn: closes idle batches, reaps completed ones. Returns true
 * while any is open or in flight. */
bool vgpu_gate_tick(void);
/* Takes over card's schedule from the grant. */
void vgpu_gate_schedule(int card, const struct vgpu_schedule *s);
/* After a fork, in the child: empty and unlocked. */
void vgpu_gate_in_child(void);
/* Number of stream captures open in this process. */
extern int vgpu_captures;
/* Of them, those that the driver has not begun yet. */
extern int vgpu_captures_begin;
/* boundary.c: after a fork, in the child: none. */
void vgpu_captures_in_child(void);
static inline bool vgpu_capturing(void)
{
	return __atomic_load_n(&vgpu_captures, __ATOMIC_ACQUIRE) > 0;
}

/* Beside a capture event calls are made in a mode that excepts this thread. A driver before CUDA
 * 10.1 has none: there any of them would spoil it. */
static inline bool vgpu_events_barred(void)
{
	return unlikely(vgpu_capturing()) && !vgpu_real.cuThreadExchangeStreamCaptureMode;
}

/* event.c: around a question to the driver that would spoil a capture. One that began by a call
 * that this library does not know is not counted above: as long as this thread says that it is
 * relaxed about captures, its questions do none any harm. */
int vgpu_capture_relax(void);
void vgpu_capture_restore(int mode);

/* costs.c: learned GPU time of a launch, by function and grid. */
struct vgpu_cost {
	uint64_t key;
	uint32_t est_ns;
	uint32_t samples;  /* 0: not learned */
	float doubt;       /* standard deviation of the estimate, as a part of it */
	uint32_t alone;    /* so many launches of it were measured alone since it became longer */
	uint32_t rejected; /* samples in a row that looked interrupted */
	float longer;      /* the least of them, in times of the estimate */
	/* One launch that is longer than a slice, beside others: it costs at most what the
	 * shortest of the last has taken, and at least the part that is surely its own of
	 * the longest. 0: not known. */
	float most_ns, least_ns;
	/* Launches before the first that was measured, and what they were charged. */
	uint32_t unseen;
	uint64_t unseen_ns;
};
/* Launches of one function among others. */
struct vgpu_cost_part {
	struct vgpu_cost *cost;
	uint32_t launches;
};
/* Entry for the key; never NULL. Where the table is full another key's is taken for it. */
struct vgpu_cost *vgpu_cost_of(uint64_t key);
/* What is known of a key is no longer true. */
void vgpu_cost_forget(uint64_t key);
/* What the parts are taken for now, and rest_ns for the others, in nanoseconds. */
double vgpu_costs_sum(const struct vgpu_cost_part *parts, unsigned n, double rest_ns);
/* Learns from launches that ran one after another: together they took the card at
 * least and at most so many nanoseconds. rest_ns: what is not among the parts. */
void vgpu_costs_learn(const struct vgpu_cost_part *parts, unsigned n, double rest_ns, double least,
		      double most);
/* What launches of a function were charged too little before it was known, in nanoseconds;
 * asked once. 0: nothing, or it is not known yet. */
double vgpu_costs_owed(struct vgpu_cost *c);
/* A launch that was measured alone took at least and at most so many nanoseconds. */
void vgpu_costs_alone(struct vgpu_cost *c, double least, double most);
/* All of the estimates are wrong by this factor, and unsure. */
void vgpu_costs_scale(const struct vgpu_cost_part *parts, unsigned n, double by);
/* What one launch that took so many nanoseconds is taken to have cost: around part of it,
 * where other launches of the function do not say better. least_part of it is surely its
 * own; 0: that is not known. */
double vgpu_costs_long(struct vgpu_cost *c, double took, double part, double least_part);

/* rm.c: channel groups of this process, learned from ioctl. */
/* Says which card the channel groups that this thread makes belong to; -1 ends. */
void vgpu_rm_creating(int card);
/* Sets the slice of all channel groups of a card; 0 puts the driver's own back. Reads
 * it back from groups that never had one of ours, and with verify from all. Returns 0,
 * -ENOENT when none is known, or -EPERM when the driver refused or another value was
 * read back. */
int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify);
void vgpu_rm_forget(void);
/* Transport of a driver that answers these calls itself (the simulated card). */
void vgpu_rm_set_transport(int (*transport)(int fd, unsigned long req, void *arg));

/* slices.c: keeps the slices at what the grant says. */
void vgpu_slices_apply(int card, const struct vgpu_schedule *s, bool force);

/* launch.c: the host has waited for all work of a stream (NULL: of the context), or
 * for some of it. Counts when the card then has nothing more to do for it: the job
 * gives up the rest of its slice at each such wait. began: by vgpu_wait_begins(). */
#define VGPU_SOME_WORK ((CUstream)(uintptr_t)-1)
static inline uint64_t vgpu_wait_begins(void)
{
	return __atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED) ? vgpu_now() : 0;
}
void vgpu_waited(CUstream stream, uint64_t began);

/* working.c: the stream of a launch; a stream or context that is about to go (both
 * NULL: all); a capture begins (counts vgpu_captures); the watcher's look; a forked
 * child. */
void vgpu_working_note(int card, CUstream stream);
void vgpu_working_forget(CUstream stream, CUcontext ctx);
void vgpu_working_capture(void);
void vgpu_working_tick(uint64_t now);
/* Whether the stream of the last launch still works; false when that is not known. */
bool vgpu_working(int card);
/* Whether that is the stream. */
bool vgpu_working_is(int card, CUstream stream);
void vgpu_working_in_child(void);

/* ask.c: asks gresd, a line in JSON with its newline. The answer, without its newline,
 * is in at most so many bytes with a NUL; false when gresd refuses or does not answer
 * in that time, at once where there is none. */
bool vgpu_ask(const char *question, uint64_t within_ns, char *answer, size_t size);

/* ended.c: before an allocation is refused: frees what processes of other PID
 * namespaces have held, if bytes may fit then. True when it is worth to try again. Takes
 * a millisecond or two where gresd answers that none has ended, and up to VGPU_GRACE_NS
 * more where one has just; 0.75 s at most, where gresd is slow. */
bool vgpu_ended_make_room(int card, uint64_t bytes);
void vgpu_ended_in_child(void);

/* hostpid.c: writes this process's pid outside its PID namespace to its slot, 0
 * when it cannot be learned. May wait for gresd for a second or two. */
void vgpu_host_pid(void);

/* watcher.c */
/* So often it says in its slot that the process is there. */
#define HEARTBEAT_NS 100000000u
/* Starts the watcher thread of this process, once; does nothing without a grant. Where no
 * thread is to be had, the gate holds the process by its budget whatever gresd says. */
void vgpu_watcher_start(void);
extern uint32_t vgpu_unwatched;
/* By a launch of such a process: now and then what the watcher would do. */
void vgpu_watcher_again(void);
void vgpu_watcher_in_child(void);

/* tell.c: to stderr, for the job's user. The settings are read from the environment
 * once, when the grant is. A refused allocation, of so many bytes or (0) of what no
 * call asked for; at most one line in 30 s. What this process has been given, if
 * the user wants to know. */
void vgpu_tell_settings(void);
void vgpu_tell_oom(int card, uint64_t bytes);
void vgpu_tell_grant(void);

/* log.c: a signal that the library's next call may raise is none of the program's: what
 * is raised between the two is taken back. raised: it may be there now. */
struct vgpu_signal_hold {
	sigset_t signal, before;
	bool held, had;
};
void vgpu_signal_hold(struct vgpu_signal_hold *h, int signal);
void vgpu_signal_drop(struct vgpu_signal_hold *h, bool raised);

/* log.c: to stderr, only when VGPU_LOG_LEVEL asks, a bounded number of lines. */
void vgpu_say(const char *text, size_t len); /* to stderr, or nowhere: it never waits */
void vgpu_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* a line, always */
/* Reads the environment, which a program may change while other threads run: at attach. */
void vgpu_log_settings(void);
enum vgpu_log_level { VGPU_LOG_ERROR = 1, VGPU_LOG_WARN, VGPU_LOG_INFO, VGPU_LOG_DEBUG };
void vgpu_log(enum vgpu_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
