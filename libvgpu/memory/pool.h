/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - stream-ordered allocation: the charge of a pool. */
#ifndef VGPU_MEMORY_POOL_H
#define VGPU_MEMORY_POOL_H

#include "../base/table.h"
#include "../base/util.h"
#include "../driver/cuda_abi.h"

/* The driver's pools grow in steps of this many bytes (measured: 580, H200). */
#define VGPU_POOL_STEP (32ull << 20)

/* frees.c: memory of a pool that streams freed. In the freeing stream the pool can use it at once.
 * Other streams and the card get it later: the card must have executed the free, and the host must
 * have waited for that. With driver 580, a query is not enough for cuMemPoolTrimTo. */
struct vgpu_frees {
	/* Stream -> an event behind its last free, and the bytes that it freed since none was known. A
	 * thread takes an entry out for a call that waits if the stream is full. */
	struct vgpu_table in;
	unsigned pending; /* entries, including entries that a thread has taken out */
	bool unknown;     /* there may be others */
};

/* The stream has just freed so many bytes; costs an event in it. */
void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes);
/* Returns how many bytes other streams have yet to free, at most. */
uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream);
/* Makes the stream's later work wait for the frees of other streams, so that the driver can give it
 * their memory. Do not call this during a capture. */
void vgpu_frees_before(struct vgpu_frees *f, CUstream stream);
/* Waits for the frees that the card has executed, so that the driver knows of them. Returns true if no
 * free is left. Do not call this during a capture. */
bool vgpu_frees_passed(struct vgpu_frees *f);
/* There are none. */
void vgpu_frees_none(struct vgpu_frees *f);

struct pool {
	CUmemoryPool handle; /* NULL: free entry. Written under vgpu_pools_lock */
	CUmemoryPool was;    /* of a destroyed pool; under vgpu_pools_lock */
	int card;
	bool managed;     /* its pages may be elsewhere */
	uint64_t live;    /* bytes that the program holds */
	uint64_t charged; /* bytes on our slot for this pool */
	uint64_t unasked; /* bytes taken since the driver was asked what it has reserved */
	bool grown;       /* by more than was charged before: the job may be above its limit */
	struct vgpu_frees frees;
	struct pool *next;
};

/* Also held over calls of the driver that name a pool which another thread may destroy. */
extern pthread_mutex_t vgpu_pools_lock;

/* One allocation from a pool, between being booked and being made. */
struct vgpu_booking {
	struct pool *pool;
	uint64_t bytes;
	CUstream stream;
	uint64_t pause_ns, waited_ns; /* for room */
	bool marked;                  /* vgpu_mem_begin was called */
};
/* Charges the allocation before the driver's call. Returns CUDA_SUCCESS, or the error for the caller. */
CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size, CUstream stream);
/* Call this after the driver's call, whose result is *r. If the allocation failed, releases its charge.
 * If the pool has grown above the limit, frees the allocation. Returns true if there is room now: call
 * the driver again. Otherwise *r is the result for the caller. */
bool vgpu_pool_again(struct vgpu_booking *b, CUdeviceptr *dptr, CUresult *r);

/* Returns the largest growth of a pool by an allocation of so many bytes. */
static inline uint64_t vgpu_pool_steps(uint64_t bytes)
{
	return (bytes + VGPU_POOL_STEP - 1) / VGPU_POOL_STEP * VGPU_POOL_STEP;
}

/* card: where the pool is, should it be new; -1: it is not. NULL when there is no room. */
struct pool *vgpu_pool_of(CUmemoryPool handle, int card);

/* The driver has made an allocation of it: the program holds it. */
void vgpu_pool_keep(struct pool *p, CUdeviceptr dptr, uint64_t size);
/* An entry of a pool is freed, and before that, if it is freed in a stream. */
void vgpu_pool_freed_in(const struct vgpu_item *item, CUstream stream);
void vgpu_pool_freed(const struct vgpu_item *item);
/* Destroys a pool by the driver's call. Its charge ends with its last free. */
CUresult vgpu_pool_destroy(CUmemoryPool handle);

/* The driver may let a stream wait for the frees of other streams. */
bool vgpu_pool_streams_wait(struct pool *p);
/* Call this after a change that may have made pools smaller. */
void vgpu_pools_changed(void);
/* Memory that the card's pools keep but nobody uses: the driver gets it back. Not during a capture. */
void vgpu_pools_trim(int card);
/* Set the charges to the memory of the pools, if the two may differ. vgpu_pool_settle returns true if the
 * pool has memory that the program does not use. */
void vgpu_pools_settle(void);
bool vgpu_pool_settle(struct pool *p);
/* The host has waited for work, so pools may have given memory back: other processes can use it now. */
void vgpu_pools_waited(void);
/* The watcher's look: the same, from time to time. */
void vgpu_pools_tick(uint64_t now);
/* A context has ended, and what was allocated in it, unless the driver says otherwise. */
void vgpu_pools_ended(uint64_t owner);
/* Which pool is current on a device may have changed. */
void vgpu_pools_forget_current(void);

#endif
