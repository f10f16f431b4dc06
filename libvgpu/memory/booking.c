/* SPDX-License-Identifier: Apache-2.0 */
/*
 * booking.c - room for allocations, of pools and others. Memory that is freed in a stream is the program's no longer, but is
 * there for another stream only when the card has come to the free, or the stream waits for that.
 * Where the driver grows the pool instead, that is seen after the call: an allocation by which the
 * job is above its limit is undone, and made again once the pool has room.
 */
#include <errno.h>
#include <time.h>

#include "../driver/captures.h"
#include "account.h"
#include "pool.h"
#include "shared.h"

/* The granularity of allocations inside a pool. */
#define POOL_ALIGN 512ull
/* An allocation that was undone waits this long for pending frees. Not longer: they may wait for this
 * thread. Each retry can grow the pool above the limit, so retries without a pending free count as waits:
 * then only other threads can make room. */
#define PATIENCE_NS 500000000u
#define IDLE_RETRY_NS (PATIENCE_NS / 4)
/* The pool is looked at at once, then after pauses that double. */
#define PAUSE_NS 1000000u
#define LONGEST_NS (31 * PAUSE_NS)

/* The pool was found to have grown, and that is more than the job may have. */
static bool above(struct pool *p)
{
	if (likely(!LOAD(&p->grown)))
		return false;
	/* First: who finds more growth meanwhile says so again. */
	STORE(&p->grown, false);
	if (vgpu_charge(p->card, 0) == 0)
		return false;
	STORE(&p->grown, true);
	return true;
}

/* Charges more for the pool where it has no room: what is announced and what the card counts now
 * differ until the driver has grown it. */
static int room_for(struct vgpu_booking *b, uint64_t live)
{
	struct pool *p = b->pool;

	if (unlikely(above(p)))
		return -ENOMEM;
	if (likely(live <= LOAD(&p->charged)))
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

	for (int tries = 0; tries < 2; tries++) {
		if (likely(room_for(b, ADD(&p->live, b->bytes)) == 0))
			return 0;
		/* Not held while the pools are brought up to date: settling charges
		 * whatever is live without asking. */
		SUB(&p->live, b->bytes);
		vgpu_pools_trim(p->card);
	}
	return -ENOMEM;
}

static void end_mark(struct vgpu_booking *b)
{
	if (b->marked)
		vgpu_mem_end();
	b->marked = false;
}

/* Sleeps, but not the first time. */
static void pause_for_frees(struct vgpu_booking *b)
{
	int cancel = vgpu_no_cancel();

	nanosleep(&(struct timespec){.tv_nsec = (long)b->pause_ns}, NULL);
	vgpu_cancel_as(cancel);
	b->waited_ns += b->pause_ns;
	if (b->pause_ns < LONGEST_NS)
		b->pause_ns = 2 * b->pause_ns + PAUSE_NS;
}

/* Waits until the booking has room again. False: it has none. What was undone is a free of its own
 * stream, and to come there. */
static bool comes_to_fit(struct vgpu_booking *b)
{
	struct vgpu_frees *f = &b->pool->frees;
	bool pending = true;

	end_mark(b);
	vgpu_frees_mark(f, b->stream, b->bytes);
	while (pending && !vgpu_capturing()) {
		pause_for_frees(b);
		pending = !vgpu_frees_passed(f);
		if (b->waited_ns >= PATIENCE_NS)
			break;
		if (grow(b) == 0) {
			b->waited_ns += pending ? 0 : IDLE_RETRY_NS;
			return true;
		}
	}
	/* The pool gives back what was undone. */
	vgpu_pools_trim(b->pool->card);
	return false;
}

/* Where the driver would have to grow the pool above the limit without what other streams are to free,
 * the booking's stream waits for those: then the driver takes that instead, as it does on a card that
 * is full. The booking is live. */
static void order(const struct vgpu_booking *b)
{
	struct pool *p = b->pool;
	uint64_t limit = vgpu_limit(p->card), used = vgpu_mem_used(p->card), want, have;

	if (likely(!limit || used + b->bytes <= limit) || vgpu_capturing() ||
	    vgpu_frees_passed(&p->frees))
		return;
	have = LOAD(&p->charged);
	want = vgpu_pool_steps(LOAD(&p->live) + vgpu_frees_elsewhere(&p->frees, b->stream));
	if (want > have && used + want - have > limit && vgpu_pool_streams_wait(p))
		vgpu_frees_before(&p->frees, b->stream);
}

CUresult vgpu_pool_book(struct vgpu_booking *b, struct pool *p, size_t size, CUstream stream)
{
	*b = (struct vgpu_booking){.pool = p,
				   .bytes = (size + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN,
				   .stream = stream};
	if (vgpu_absurd(size))
		return vgpu_oom(p->card, size);
	/* The pool may have the memory of one that was undone. */
	if (unlikely(grow(b)) && !(LOAD(&p->grown) && comes_to_fit(b))) {
		end_mark(b);
		return vgpu_oom(p->card, b->bytes);
	}
	order(b);
	return CUDA_SUCCESS;
}

/* Near the charge the driver may have grown the pool, and wherever what is free is not for this
 * stream or in pieces: it is asked by how much. Of small allocations, once in a step of the pool. */
static bool grew_above(const struct vgpu_booking *b)
{
	struct pool *p = b->pool;

	if (ADD(&p->unasked, b->bytes) >= VGPU_POOL_STEP ||
	    LOAD(&p->live) + b->bytes > LOAD(&p->charged))
		vgpu_pool_settle(p);
	return above(p);
}

bool vgpu_pool_again(struct vgpu_booking *b, CUdeviceptr *dptr, CUresult *r)
{
	bool undone = *r == CUDA_SUCCESS && unlikely(grew_above(b)) && vgpu_real.cuMemFreeAsync &&
		      vgpu_real.cuMemFreeAsync(*dptr, b->stream) == CUDA_SUCCESS;

	if (*r == CUDA_SUCCESS && !undone) {
		vgpu_pool_keep(b->pool, *dptr, b->bytes);
	} else {
		SUB(&b->pool->live, b->bytes);
		vgpu_pools_changed();
	}
	if (undone && comes_to_fit(b))
		return true;
	end_mark(b);
	if (undone) {
		*dptr = 0;
		*r = vgpu_oom(b->pool->card, b->bytes);
	}
	return false;
}

/* Above the pools, whose unused memory must not refuse anything. */
int vgpu_mem_take(int card, uint64_t bytes)
{
	vgpu_mem_begin();
	vgpu_imports_settle(card);
	int r = vgpu_charge_now(card, bytes);
	if (r) {
		/* The driver, too, takes from its pools what nobody uses before it refuses. */
		vgpu_pools_trim(card);
		vgpu_pools_settle();
		r = vgpu_charge(card, bytes);
	}
	/* To make room, slots of processes that have ended may have been cleared. */
	if (r == 0 && vgpu_imports_settle(card) && vgpu_charge_now(card, 0)) {
		vgpu_release(card, bytes);
		r = -ENOMEM;
	}
	if (r)
		vgpu_mem_end();
	return r;
}
