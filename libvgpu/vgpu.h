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

#include "ask.h"
#include "captures.h"
#include "cards.h"
#include "compute.h"
#include "config.h"
#include "costs.h"
#include "cuda_abi.h"
#include "dl.h"
#include "env.h"
#include "job.h"
#include "log.h"
#include "prototypes.h"
#include "real.h"
#include "region_ops.h"
#include "table.h"
#include "tell.h"
#include "util.h"
#include "waits.h"
#include "working.h"

/* For dlsym to return NULL, where NULL leaves the answer to the C library. */
#define VGPU_NOTHING ((void *)-1)
/* What this library exports as dlsym, dlvsym, dlopen and dlmopen. */
void *vgpu_dlsym(void *handle, const char *name);
void *vgpu_dlvsym(void *handle, const char *name, const char *version);
void *vgpu_own_dlopen(const char *file, int mode);
void *vgpu_own_dlmopen(long ns, const char *file, int mode);
/* Which of them stands for the function that handle leads to; NULL: none. */
void *vgpu_loader_hook(void *handle, const char *name, const char *version);

/* launch.c: CUDA_LAUNCH_BLOCKING is set: every launch waits for its work. */
extern bool vgpu_launches_wait;

/* context.c: a context is there that no hook saw being made; a forked child has none. */
void vgpu_context_seen(int card);
void vgpu_contexts_in_child(void);
/* The context that memory which is taken now ends with; a green one's is the primary's. */
uint64_t vgpu_context_owner(int card);
/* boundary.c: the same of captures. */
void vgpu_origins_in_child(void);

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

/* rm.c: channel groups of this process, learned from ioctl. */
/* Says which card the channel groups that this thread makes belong to; -1 ends. */
void vgpu_rm_creating(int card);
/* Sets the slice of all channel groups of a card; 0 puts the driver's own back. Reads
 * it back from groups that never had one of ours, and with verify from all. Returns 0,
 * -ENOENT when none is known, or -EPERM when the driver refused or another value was
 * read back. */
int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify);
void vgpu_rm_forget(void);

/* slices.c: keeps the slices at what the grant says. */
void vgpu_slices_apply(int card, const struct vgpu_schedule *s, bool force);

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
/* Starts the watcher thread of this process, once; does nothing without a grant, and sets vgpu_unwatched
 * where no thread is to be had. */
void vgpu_watcher_start(void);
void vgpu_watcher_in_child(void);

#endif
