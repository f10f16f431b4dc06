/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slices.c - keeps the time slices of this process's channel groups at what
 * the grant says. The card's own scheduler then divides it by weight, whatever
 * the kernels are, at no cost per launch.
 */
#ifdef VGPU_PRELOAD
#include <errno.h>

#include "vgpu.h"

static uint32_t wanted[VGPU_MAX_CARDS];

static void set_flag(uint32_t set, uint32_t clear)
{
	uint32_t old = __atomic_load_n(&vgpu_state.slot->flags, __ATOMIC_RELAXED);

	while (!__atomic_compare_exchange_n(&vgpu_state.slot->flags, &old, (old | set) & ~clear,
					    false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, bool force)
{
	/* By the watcher, and by threads that make a context. */
	uint32_t before = __atomic_load_n(&wanted[card], __ATOMIC_RELAXED);
	uint32_t *told = &vgpu_my(card)->slice_us;
	int r;

	if (!force && s->slice_us == before)
		return;
	__atomic_store_n(&wanted[card], s->slice_us, __ATOMIC_RELAXED);
	/* Nothing was ever set: leave the driver alone. */
	if (s->slice_us == 0 && before == 0)
		return;
	r = vgpu_rm_set_slices(card, s->slice_us, force);
	if (s->slice_us == 0) {
		/* Back to the driver's own: that proves nothing about setting one,
		 * and gresd goes by what is proved. */
		__atomic_store_n(told, 0, __ATOMIC_RELAXED);
	} else if (r == 0) {
		__atomic_store_n(told, s->slice_us, __ATOMIC_RELAXED);
		set_flag(VGPU_SLOT_SLICES_OK, VGPU_SLOT_SLICES_REFUSED);
	} else if (r == -EPERM) {
		__atomic_store_n(told, 0, __ATOMIC_RELAXED);
		set_flag(VGPU_SLOT_SLICES_REFUSED, VGPU_SLOT_SLICES_OK);
		vgpu_log(VGPU_LOG_WARN, "slices: card %d: %u us refused by the driver", card,
			 s->slice_us);
	}
}
#endif
