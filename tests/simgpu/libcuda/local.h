/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - what one process of the simulated driver keeps for itself.
 *
 * Locks. drv.lock guards everything here; the model's lock (sim_lock) is
 * taken inside it and never held while sleeping or while user code runs.
 *
 * Content of device memory. An address is only a number: the range is
 * reserved without access rights, so that a host access faults as it would
 * with a real card. The first DRV_KEEP bytes of each allocation keep what is
 * copied or set; bytes beyond that read as zero. Kernels are not executed:
 * they take time, and may count their completions (see module.c).
 */
#ifndef SIMGPU_LOCAL_H
#define SIMGPU_LOCAL_H

#include <pthread.h>
#include <stdbool.h>

#include "../cuda_abi.h"
#include "../model.h"

#define DRV_KEEP (64ull << 20)
#define DRV_PAGE (2ull << 20)  /* granularity of device memory */
#define DRV_SMALL (1ull << 20) /* allocations up to this share pages */
#define SIM_AFTER 16           /* other streams' events that a stream waits for */
#define POOL_STEP (32ull << 20)
#define POOL_ALIGN 512ull /* of allocations in a pool */
#define DRV_DEPTH 32      /* context stack of a thread */
#define PT(s) ((s) == NULL ? CU_STREAM_PER_THREAD : (s))
/* This thread is in a call without a stream whose default stream is its own. */
extern __thread bool drv_per_thread;

enum { NEED_INIT, NEED_CTX };

enum effect_kind {
	EFF_EVENT,
	EFF_WRITE,
	EFF_COPY,
	EFF_FILL,
	EFF_COUNT,
	EFF_FREE,
	EFF_CALL,
	EFF_CALLBACK,
	EFF_WAIT_VALUE,
	EFF_SPIN
};

/* What an op does in this process. Owned by the op; graphs keep templates. */
struct effect {
	enum effect_kind kind;
	unsigned width; /* bytes of one element */
	unsigned flags;
	uint64_t dst, src, n, value;
	void *snapshot; /* pageable source, copied when the call was made */
	CUevent event;
	uint64_t record;
	CUhostFn fn;
	CUstreamCallback callback;
	CUstream stream;
	void *data;
	uint64_t done_ns;
	struct effect *next;
};

/* One piece of work, before it is an op of a stream or a node of a graph. */
struct work {
	enum sim_kind kind;
	unsigned flags;
	uint64_t ns;
	uint32_t dep_stream, dep_gen;
	uint64_t dep_index;
	struct effect *eff;
	uint32_t part; /* of the card, in millionths; 0: all of it */
};

struct CUctx_st {
	uint32_t magic;
	int slot; /* in the model */
	uint32_t card;
	CUdevice dev;
	unsigned flags;
	unsigned api_version;
	bool primary;
	unsigned refs; /* cuCtxAttach */
	uint64_t id;
	CUstream streams; /* all, default streams too */
	CUstream legacy;
	size_t limit[CU_LIMIT_COUNT];
	uint64_t heap_bytes; /* charged for the malloc heap and the stack */
	bool uses_heap;      /* a module that calls malloc has been loaded */
	uint32_t device_handle, group_handle[4];
	int cache_config, shared_config;
	CUcontext next;
};

struct capture {
	CUgraph graph; /* has a reference to it */
	bool callers_graph;
	int mode;
	bool invalid;
	uint64_t id;
	pthread_t thread;
	CUstream origin;
	struct capture *next;
};

struct CUstream_st {
	uint32_t magic;
	CUcontext ctx;
	uint32_t slot, gen;
	unsigned flags;
	int priority;
	bool dying; /* destroyed, but with work left */
	bool per_thread;
	unsigned urgent; /* queued ops that the background thread must see to */
	uint64_t id;
	struct capture *capture;
	/* It waits for these events: of which stream, of which op there, by which op of its own. */
	struct {
		uint32_t stream, gen;
		uint64_t index, at;
	} after[SIM_AFTER];
	unsigned nafter;
	CUstream next;
};

struct CUevent_st {
	uint32_t magic;
	CUcontext ctx;
	unsigned flags;
	bool recorded, complete, destroyed;
	unsigned pending; /* effects that point here */
	uint64_t record;  /* number of the latest record */
	uint32_t stream, gen;
	uint64_t index;
	uint64_t done_ns;
	uint64_t capture_id; /* the capture it was recorded in; 0: none */
};

enum block_kind {
	BLOCK_LINEAR,
	BLOCK_MANAGED,
	BLOCK_HOST,
	BLOCK_REGISTERED,
	BLOCK_POOL,
	BLOCK_RESERVED,
	BLOCK_MAPPED,
	BLOCK_MODULE,
	BLOCK_IPC
};

struct block {
	uint64_t va, size;
	enum block_kind kind;
	uint32_t card;
	CUcontext ctx;
	uint64_t charged; /* bytes taken from the card for it alone */
	bool small;
	bool freeing;
	bool given;       /* of a pool, which no longer counts it as used */
	unsigned exports; /* descriptors of it that are open */
	bool gone;        /* when those are closed */
	uint64_t export;  /* as of a vmm_handle: linear memory with a dma-buf */
	unsigned flags;
	CUmemoryPool pool;
	uint64_t at;                 /* its place there */
	struct vmm_handle *external; /* memory that is mapped here without an own reservation */
	uint64_t imported;           /* address of the allocation that this is an import of */
	struct vmm_handle *handle;
	uint64_t handle_offset;
	unsigned char *kept;
};

struct vmm_handle {
	uint32_t magic;
	uint32_t card;
	uint64_t size;
	unsigned refs, maps;
	bool host; /* device: the NUMA node */
	int device;
	int types;       /* of handles that it can be exported as */
	uint64_t export; /* its number in the model; 0: none */
	struct vmm_handle *next;
};

struct CUmemPoolHandle_st {
	uint32_t magic;
	uint32_t card;
	CUdevice dev;
	uint64_t reserved, reserved_high, used, used_high, threshold;
	uint32_t *step; /* bytes of the card's memory in each step */
	size_t nsteps;
	bool is_default, destroyed;
	int reuse[4]; /* by attribute; only the last one changes what the pool does */
	int types;
	unsigned given;   /* blocks that are freed when their stream comes to it */
	uint64_t export;  /* of a pool that was exported; its descriptors */
	unsigned imports; /* of it, which keep it */
	CUmemoryPool of;  /* an imported pool: which */
	CUmemoryPool next;
};

struct driver {
	pthread_mutex_t lock;
	pthread_cond_t wake;    /* for the background thread */
	pthread_cond_t changed; /* an owner's op has ended, an effect was applied */
	struct sim_state *st;
	int proc; /* slot; -1: none yet */
	bool ready, forked, thread_started;
	bool launches_block; /* CUDA_LAUNCH_BLOCKING */
	bool locked;         /* by cuda-checkpoint: calls wait */
	int server;          /* MPS: process id of the server; 0: this is no client */
	unsigned calls;      /* that have begun and not ended */
	int ndevices;
	uint32_t card[SIM_MAX_CARDS]; /* device ordinal to card */
	CUcontext contexts;
	CUcontext primary[SIM_MAX_CARDS]; /* NULL: not made, or reset */
	unsigned primary_refs[SIM_MAX_CARDS];
	unsigned primary_flags[SIM_MAX_CARDS];
	struct capture *captures;
	uint64_t ids;
	uint64_t small_bytes[SIM_MAX_CARDS], small_charged[SIM_MAX_CARDS];
};

extern struct driver drv;

/* init.c: on success drv.lock is held; every return goes through drv_leave */
CUresult drv_enter(const char *call, int need);
CUresult drv_leave(CUresult rc);
void drv_model_lock(void);
void drv_model_unlock(void);
bool drv_device_ok(CUdevice dev);

/* mps.c: this process's server, asked of the control daemon that the environment names; 0: there
 * is none, as there is without a daemon. And whether it is still there */
int mps_server(void);
bool mps_gone(void);

/* checkpoint.c */
void checkpoint_start_thread(void);

/* context.c */
CUcontext drv_current(void);
bool drv_ctx_valid(CUcontext ctx);
CUresult drv_ctx_sync(CUcontext ctx);

/* ctxopts.c: charges what the limits of a context cost now */
CUresult limits_charge(CUcontext c);

/* rm.c */
void rm_announce(CUcontext ctx);
void rm_usable(CUcontext ctx);
void rm_release(CUcontext ctx);
void rm_close(void); /* nothing of this process is left there */

/* memory.c */
CUresult mem_charge(uint32_t card, uint64_t bytes);
void mem_uncharge(uint32_t card, uint64_t bytes);
CUresult mem_alloc(CUcontext ctx, uint64_t size, enum block_kind kind, struct block **out);
void mem_free(struct block *b);
void mem_drop_context(CUcontext ctx);

/* vmm.c */
void vmm_drop_if_unused(struct vmm_handle *v);
struct vmm_handle *vmm_of(CUmemGenericAllocationHandle h); /* NULL: none */

/* export.c */
uint64_t export_new(uint32_t card, uint64_t bytes); /* its number in the model, or 0 */
uint64_t export_key(struct vmm_handle *v);
void export_leave(uint64_t key);
void export_drop(struct vmm_handle *v);
CUresult export_free_import(struct block *b);
void export_end_imports(CUmemoryPool pool);

/* dmabuf.c */
void dmabuf_settle(void);           /* what the closed ones kept goes */
bool dmabuf_keeps(struct block *b); /* it is there until then */

/* array.c: what a context made goes with it */
void array_drop_context(CUcontext ctx);

/* blocks.c */
uint64_t va_take(uint64_t size, uint64_t align);
void va_give(uint64_t va, uint64_t size);
struct block *block_add(const struct block *b);
struct block *block_find(uint64_t va); /* that holds the address */
void block_remove(struct block *b);
struct block *block_at(size_t i); /* i-th by address; NULL: past the end */
void content_copy(uint64_t dst, uint64_t src, const void *snapshot, uint64_t n);
void content_fill(uint64_t dst, uint64_t value, unsigned width, uint64_t n);
bool content_load(uint64_t va, void *out, unsigned width);

/* pool.c */
void pool_release_unused(uint32_t card); /* all pools, down to what is used */
void pool_at_sync(void);
void pools_end(
	void); /* of pools that are destroyed: those whose last free the host has waited for */
void pool_free(struct block *b);
/* s: in which stream; NULL: none, so that it waits for no other */
CUresult pool_alloc(CUmemoryPool pool, CUcontext ctx, CUstream s, uint64_t size, CUdeviceptr *out);
CUmemoryPool pool_default(CUdevice dev);
CUmemoryPool pool_exported(uint64_t key); /* that has this number; NULL: none does */
CUmemoryPool pool_import(CUmemoryPool of);
void pools_forget(uint32_t card);

/* pieces.c */
struct piece {
	CUmemoryPool pool;
	uint64_t at, bytes, va;
	bool freed; /* by op index of a stream; the card does not have it back yet */
	uint32_t stream, gen;
	uint64_t index;
	struct piece *next;
};
extern struct piece *all_pieces;
struct piece *piece_add(const struct piece *piece);
void piece_drop(struct piece **link);
/* any: also where other streams have freed memory, and the stream waits for them; NULL: no memory */
struct piece *pieces_take(CUmemoryPool p, CUstream s, bool any, uint64_t bytes);
uint64_t pieces_shrink(CUmemoryPool p, uint64_t keep); /* returns what is no longer the pool's */
/* the same, of the places of one allocation, which ends */
uint64_t pieces_detach(CUmemoryPool p, uint64_t va, uint64_t at, uint64_t bytes);
void pieces_forget(CUmemoryPool p,
		   uint64_t va); /* the pieces of an address; 0: all pieces of the pool */
void pieces_unname(CUmemoryPool p, uint64_t va); /* another allocation can have the address */

/* freed.c */
bool freed_for(const struct piece *f, CUstream s); /* the stream can have it now */
uint64_t freed_kept(CUmemoryPool p);               /* that the card does not have back yet */
/* the places are the stream's now, or it waits for them */
void freed_take(CUmemoryPool p, CUstream s, uint64_t at, uint64_t bytes);
void freed_seen(uint32_t stream, uint32_t gen, uint64_t index); /* the host has waited for the op */
void freed_all_seen(CUmemoryPool p); /* NULL: of all pools, all that streams have come to */
void stream_after(CUstream s, uint64_t at, const struct CUevent_st *e);

/* queue.c */
CUstream stream_of(CUstream handle); /* NULL: no such stream */
CUstream stream_new(CUcontext ctx, bool legacy, unsigned flags, int priority);
CUresult stream_submit(CUstream s, const struct work *w, uint64_t *index);
void effect_free(struct effect *e);
/* waits until the stream has passed op index, or is another stream by now */
CUresult stream_wait(uint32_t slot, uint32_t gen, uint64_t index);
/* late.c: for how long this thread was without a processor, since the last call; and counts it, with
 * the model locked and at the present */
uint64_t late_ns(void);
void late_count(uint64_t ns);
void stream_release(CUstream s); /* a destroyed stream without work */
struct effect *effect_new(enum effect_kind kind);
struct effect *effect_copy(const struct effect *e);
CUresult submit_effect(CUstream s, enum sim_kind kind, unsigned flags, uint64_t ns,
		       struct effect *e);

/* effects.c */
void effects_take(void); /* applies what is done; drv.lock held */
void effects_start_thread(void);
void drv_sleep_until(uint64_t ns); /* gives up drv.lock meanwhile */

/* capture.c, graph.c */
CUresult capture_unsafe(void); /* the call is not allowed during a capture */
struct capture *capture_by_id(uint64_t id);
void capture_drop_stream(CUstream s);
struct capture *capture_beside(CUstream s); /* that excludes the use of this stream; NULL: none */
/* adds a node that does the work; the effect is copied */
CUresult graph_add(CUgraph g, const struct work *w, int type, CUgraphNode *node);
CUresult graph_add_alloc(CUgraph g, uint32_t card, uint64_t size, CUdeviceptr *out,
			 CUgraphNode *node);
CUresult graph_add_free(CUgraph g, CUdeviceptr dptr, CUgraphNode *node);
CUgraph graph_new(void);
void graph_free(CUgraph g);

/* ptx.c: what is read from a module's text */
#define MAX_PARAMS 64
#define NAME_MAX_LEN 256

struct CUfunc_st {
	uint32_t magic;
	CUmodule module;
	char name[NAME_MAX_LEN];
	double ns_per_unit;                      /* 0: the card's default length */
	int unit_param, count_param, wait_param; /* -1: none */
	int nparams;
	unsigned offset[MAX_PARAMS], size[MAX_PARAMS];
	int shape[3]; /* of the launches of 2007 */
	unsigned shared;
	unsigned char buffer[4096];
	CUfunction next;
};

struct global {
	char name[NAME_MAX_LEN];
	uint64_t size;
	struct block *block;
	struct global *next;
};

struct CUmod_st {
	uint32_t magic;
	CUcontext ctx; /* NULL: not loaded into a context yet */
	bool opaque;   /* machine code: any kernel name is found */
	bool uses_heap;
	CUfunction functions;
	struct global *globals;
};

bool ptx_parse(const char *text, CUmodule m);
CUfunction ptx_function(CUmodule m, const char *name);

/* module.c */
bool function_ok(CUfunction f);
CUresult module_into_context(CUmodule m);

/* launch.c: the work of one kernel with these arguments */
CUresult kernel_work(CUstream s, CUfunction f, void **params, void **extra, struct work *w);

#define MAGIC_CTX 0x43545831u
#define MAGIC_STREAM 0x53545231u
#define MAGIC_EVENT 0x45565431u
#define MAGIC_POOL 0x504f4f31u
#define MAGIC_VMM 0x564d4d31u
#define MAGIC_MODULE 0x4d4f4431u
#define MAGIC_FUNC 0x46554e31u
#define MAGIC_LIBRARY 0x4c494231u
#define MAGIC_GRAPH 0x47524831u
#define MAGIC_EXEC 0x47455831u
#define MAGIC_ARRAY 0x41525231u
#define MAGIC_GREEN 0x47524e31u

#define ENTER(need)                                          \
	do {                                                 \
		CUresult enter_ = drv_enter(__func__, need); \
		if (enter_)                                  \
			return enter_;                       \
	} while (0)

#endif
