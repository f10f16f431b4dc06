/* SPDX-License-Identifier: Apache-2.0 */
/* booking.h - one allocation from a pool, between being booked and being made. */
#ifndef VGPU_MEMORY_BOOKING_H
#define VGPU_MEMORY_BOOKING_H

#include "pool.h"

struct vgpu_booking {
	struct pool *pool;
	uint64_t bytes;
	CUstream stream;
	uint64_t pause_ns, waited_ns; /* for room */
	bool marked;                  /* vgpu_mem_begin was called */
};

/* Books it: CUDA_SUCCESS, or what the caller is told. */
CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size, CUstream stream);
/* The driver's answer, *r: what it made is kept, or undone where the pool has grown above the
 * limit; what it did not make is taken back. True: the driver is to be asked once more, there is
 * room now. Else *r is what the caller is told. */
bool vgpu_pool_again(struct vgpu_booking *b, CUdeviceptr *dptr, CUresult *r);

#endif
