/* SPDX-License-Identifier: Apache-2.0 */
/* waits.c - see waits.h. */
#include "waits.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "working.h"

void vgpu_waited(CUstream stream, uint64_t began)
{
	static uint64_t waited_for[VGPU_MAX_CARDS];
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();
	uint64_t launches;
	uint32_t *n;

	if (card < 0)
		return;
	if (unlikely(began))
		vgpu_gate_waited(card, began);
	launches = __atomic_load_n(&vgpu_my(card)->launches, __ATOMIC_RELAXED);
	/* A program that asks again and again has waited once. */
	if (launches == __atomic_load_n(&waited_for[card], __ATOMIC_RELAXED))
		return;
	/* A host that waits for the last but one is ahead of the card. */
	if (stream && !vgpu_working_is(card, stream) && vgpu_working(card))
		return;
	__atomic_store_n(&waited_for[card], launches, __ATOMIC_RELAXED);
	n = &vgpu_my(card)->syncs;
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}
