/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slices.c - sets the time slices of this process's channel groups to the slice in the grant. The card's
 * own scheduler then divides the card by weight, at no cost per launch.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "../base/log.h"
#include "../job/job.h"
#include "../kernel/kernel.h"
#include "slices.h"

/* A group that is just being freed refuses: it is forgotten when the driver has done that. */
#define TRIES 3
#define AGAIN_NS 1000000L
/* After this number of looks without a group the driver counts as unknown. */
#define LOOKS 2

static uint32_t wanted[VGPU_MAX_CARDS];
static unsigned unknown[VGPU_MAX_CARDS];  /* looks in a row at which there was no group */
static uint64_t launches[VGPU_MAX_CARDS]; /* by the last look */

static int set_slices(int card, uint32_t slice_us, bool verify)
{
	int r = vgpu_rm_set_slices(card, slice_us, verify);

	for (int i = 1; r == -EPERM && i < TRIES; i++) {
		nanosleep(&(struct timespec){.tv_nsec = AGAIN_NS}, NULL);
		r = vgpu_rm_set_slices(card, slice_us, verify);
	}
	return r;
}

static void refused(int card, uint32_t slice_us, const char *why)
{
	__atomic_store_n(&vgpu_my(card)->slice_us, 0, __ATOMIC_RELAXED);
	if (!(__atomic_load_n(&vgpu_state.slot->flags, __ATOMIC_RELAXED) &
	      VGPU_SLOT_SLICES_REFUSED))
		vgpu_log(VGPU_LOG_WARN, "slices: card %d: %u us: %s", card, slice_us, why);
	vgpu_slot_flag(VGPU_SLOT_SLICES_REFUSED, VGPU_SLOT_SLICES_OK);
}

/* True: no group is known, so the card is not divided. A process that cuda-checkpoint has suspended has
 * no groups, and launches nothing. */
static bool are_unknown(int card, int r)
{
	uint64_t now = __atomic_load_n(&vgpu_my(card)->launches, __ATOMIC_RELAXED);
	uint64_t before = __atomic_exchange_n(&launches[card], now, __ATOMIC_RELAXED);

	/* Without a slice in the grant no group need be known. */
	if (LOAD(&wanted[card]) && (r == -ENOENT || (r == -ESRCH && now != before)))
		return __atomic_add_fetch(&unknown[card], 1, __ATOMIC_RELAXED) >= LOOKS;
	__atomic_store_n(&unknown[card], 0, __ATOMIC_RELAXED);
	return false;
}

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, enum vgpu_look look)
{
	/* By the watcher, and by threads that make a context. */
	uint32_t before = __atomic_load_n(&wanted[card], __ATOMIC_RELAXED);
	uint32_t *told = &vgpu_my(card)->slice_us;
	bool nobody;
	int r;

	if (look == VGPU_NO_LOOK && s->slice_us == before)
		return;
	__atomic_store_n(&wanted[card], s->slice_us, __ATOMIC_RELAXED);
	/* Nothing was ever set: leave the driver alone. */
	if (s->slice_us == 0 && before == 0)
		return;
	/* gresd then enforces the job's limit by its budget. */
	if (vgpu_state.mps_client) {
		refused(card, s->slice_us, "a client of an MPS server has no slice of its own");
		return;
	}
	r = set_slices(card, s->slice_us, look == VGPU_READ_BACK);
	nobody = look == VGPU_READ_BACK && are_unknown(card, r);
	if (s->slice_us == 0) {
		/* The driver has its own slice again. This does not show gresd that the driver obeys. */
		__atomic_store_n(told, 0, __ATOMIC_RELAXED);
	} else if (r == 0) {
		__atomic_store_n(told, s->slice_us, __ATOMIC_RELAXED);
		vgpu_slot_flag(VGPU_SLOT_SLICES_OK, VGPU_SLOT_SLICES_REFUSED);
	} else if (r == -EPERM) {
		refused(card, s->slice_us, "refused by the driver");
	} else if (nobody) {
		/* The card is not divided, and gresd must know. */
		refused(card, s->slice_us, "no channel group of this process was found");
	} else if (r == -ESRCH) {
		__atomic_store_n(told, 0, __ATOMIC_RELAXED);
		vgpu_slot_flag(0, VGPU_SLOT_SLICES_OK);
	}
}
