/* SPDX-License-Identifier: Apache-2.0 */
/* memory_pool.h - what the files about pools share. */
#ifndef VGPU_MEMORY_POOL_H
#define VGPU_MEMORY_POOL_H

#include "vgpu.h"

struct pool {
	CUmemoryPool handle; /* NULL: free entry. Written under vgpu_pools_lock */
	CUmemoryPool was;    /* of a destroyed pool; under vgpu_pools_lock */
	int card;
	bool managed;         /* its pages may be elsewhere */
	uint64_t live;        /* bytes that the program holds */
	uint64_t charged;     /* bytes on our slot for this pool */
	uint64_t sum, ending; /* of its pointers, while a context ends; under vgpu_pools_lock */
};

/* Also held over calls of the driver that name a pool which another thread may destroy. */
extern pthread_mutex_t vgpu_pools_lock;

/* card: where the pool is, should it be new; -1: it is not. NULL when there is no room. */
struct pool *vgpu_pool_of(CUmemoryPool handle, int card);

/* One allocation from a pool, between being booked and being made. */
struct vgpu_booking {
	struct pool *pool;
	uint64_t bytes;
	bool marked; /* vgpu_mem_begin was called */
};

/* Books it: CUDA_SUCCESS, or what the caller is told. */
CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size);
/* It was made, or was not (r): that is kept, or taken back. Returns r. */
CUresult vgpu_pool_made(const struct vgpu_booking *b, const CUdeviceptr *dptr, CUresult r);

#endif
