/* SPDX-License-Identifier: Apache-2.0 */
/*
 * booking.c - see booking.h. Memory that is freed in a stream is the program's no longer, but
 * is there for another stream only when the card has come to the free; and what is free may be in
 * pieces. Where the driver grows the pool instead, that is seen after the call: an allocation by
 * which the job is above its limit is undone, and made again once the pool has room, as the driver
 * has it wait on a card that has no more.
 */
#include <errno.h>
#include <time.h>

#include "../driver/captures.h"
#include "../driver/real.h"
#include "account.h"
#include "booking.h"

/* The granularity of allocations inside a pool. */
#define POOL_ALIGN 512ull
/* So long frees are waited for that the driver says are to come; and where it says nothing of any.
 * The host may be what they wait for, so not for ever. */
#define PATIENCE_NS 5000000000u
#define DOUBT_NS 500000000u
/* The pool is looked at at once, then after pauses that double. */
#define PAUSE_NS 1000000u
#define LONGEST_NS 256000000u

/* The pool was found to have grown, and that is more than the job may have. */
static bool above(struct pool *p)
{
	if (likely(!__atomic_load_n(&p->grown, __ATOMIC_SEQ_CST)))
		return false;
	/* First: who finds more growth meanwhile says so again. */
	__atomic_store_n(&p->grown, false, __ATOMIC_SEQ_CST);
	if (vgpu_charge(p->card, 0) == 0)
		return false;
	__atomic_store_n(&p->grown, true, __ATOMIC_SEQ_CST);
	return true;
}

/* Charges more for the pool where it has no room: what is announced and what the card counts now
 * differ until the driver has grown it. */
static int room_for(struct vgpu_booking *b, uint64_t live)
{
	struct pool *p = b->pool;

	if (unlikely(above(p)))
		return -ENOMEM;
	if (likely(live <= __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST)))
		return 0;
	if (!b->marked)
		vgpu_mem_begin();
	b->marked = true;
	return vgpu_charge_up_to(p->card, &p->charged, vgpu_pool_steps(live));
}

/* Makes room for the booking in the pool; 0 or -ENOMEM. */
static int grow(struct vgpu_booking *b)
{
	struct pool *p = b->pool;
	uint64_t live = __atomic_add_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);

	if (likely(room_for(b, live) == 0))
		return 0;
	/* Not held while the pools are brought up to date: settling charges
	 * whatever is live without asking. */
	__atomic_sub_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);
	vgpu_pools_trim(p->card);
	live = __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + b->bytes;
	if (room_for(b, live))
		return -ENOMEM;
	__atomic_add_fetch(&p->live, b->bytes, __ATOMIC_SEQ_CST);
	return 0;
}

static void end_mark(struct vgpu_booking *b)
{
	if (b->marked)
		vgpu_mem_end();
	b->marked = false;
}

static void take_back(struct vgpu_booking *b)
{
	__atomic_sub_fetch(&b->pool->live, b->bytes, __ATOMIC_SEQ_CST);
	vgpu_pools_changed();
}

static void pause_for_frees(struct vgpu_booking *b)
{
	int cancel = vgpu_no_cancel();

	nanosleep(&(struct timespec){.tv_nsec = (long)b->pause_ns}, NULL);
	vgpu_cancel_as(cancel);
	b->waited_ns += b->pause_ns;
	b->pause_ns = b->pause_ns ? b->pause_ns * 2 : PAUSE_NS;
	if (b->pause_ns > LONGEST_NS)
		b->pause_ns = LONGEST_NS;
}

/* The driver gives back what a stream has freed when it was seen to be there: the stream is asked,
 * which nothing waits for. */
static void see(CUstream stream)
{
	int mode;

	if (!vgpu_real.cuStreamQuery)
		return;
	mode = vgpu_capture_relax();
	vgpu_real.cuStreamQuery(stream);
	vgpu_capture_restore(mode);
}

/* Waits until the booking has room again. False: it has none. */
static bool comes_to_fit(struct vgpu_booking *b)
{
	end_mark(b);
	while (!vgpu_capturing()) {
		see(b->stream);
		vgpu_pools_trim(b->pool->card);
		if (b->waited_ns >= (vgpu_pool_frees_pend(b->pool) ? PATIENCE_NS : DOUBT_NS))
			return false;
		pause_for_frees(b);
		if (grow(b) == 0)
			return true;
	}
	return false;
}

static CUresult refuse(struct vgpu_booking *b)
{
	end_mark(b);
	return vgpu_oom(b->pool->card, b->bytes);
}

CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size, CUstream stream)
{
	*b = (struct vgpu_booking){.pool = p,
				   .bytes = (size + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN,
				   .stream = stream};
	if (vgpu_absurd(size))
		return vgpu_oom(p->card, size);
	if (likely(grow(b) == 0))
		return CUDA_SUCCESS;
	/* Of an allocation that was undone, it may be. */
	if (__atomic_load_n(&p->grown, __ATOMIC_SEQ_CST) && comes_to_fit(b))
		return CUDA_SUCCESS;
	return refuse(b);
}

/* Near the charge the driver may have grown the pool, and wherever what is free is not for this
 * stream or in pieces: it is asked by how much. Of small allocations, once in a step of the pool. */
static bool grew_above(const struct vgpu_booking *b)
{
	struct pool *p = b->pool;
	uint64_t unasked = __atomic_add_fetch(&p->unasked, b->bytes, __ATOMIC_SEQ_CST);

	if (unasked >= VGPU_POOL_STEP || __atomic_load_n(&p->live, __ATOMIC_SEQ_CST) + b->bytes >
						 __atomic_load_n(&p->charged, __ATOMIC_SEQ_CST))
		vgpu_pool_settle(p);
	return above(p);
}

bool vgpu_pool_again(struct vgpu_booking *b, CUdeviceptr *dptr, CUresult *r)
{
	if (*r == CUDA_SUCCESS && unlikely(grew_above(b)) && vgpu_real.cuMemFreeAsync &&
	    vgpu_real.cuMemFreeAsync(*dptr, b->stream) == CUDA_SUCCESS) {
		take_back(b);
		*dptr = 0;
		if (comes_to_fit(b))
			return true;
		*r = refuse(b);
		return false;
	}
	if (*r == CUDA_SUCCESS)
		vgpu_pool_keep(b->pool, *dptr, b->bytes);
	else
		take_back(b);
	end_mark(b);
	return false;
}
