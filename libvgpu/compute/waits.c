/* SPDX-License-Identifier: Apache-2.0 */
/* waits.c - see waits.h. Takes no lock and makes no call of the driver. */
#include "waits.h"
#include "../job/cards.h"
#include "gates.h"

/* Well below the time for which gresd believes a launch. */
#define SIGN_NS 50000000u

/* Launches are behind the last event, if there is one. */
#define LAUNCHES ((const void *)-1)

static struct {
	const void *stream; /* of the last launch; of a thread's own default stream, the thread */
	const void *last;   /* LAUNCHES, the event behind them, or NULL: the host has waited */
} state[VGPU_MAX_CARDS];
static unsigned waiting; /* threads */

static const void *name_of(CUstream stream)
{
	const void *thread = vgpu_stream_thread(stream);

	return thread ? thread : stream;
}

void vgpu_waits_launched(int card, CUstream stream)
{
	const void *name = name_of(stream);

	if (likely(__atomic_load_n(&state[card].last, __ATOMIC_RELAXED) == LAUNCHES &&
		   __atomic_load_n(&state[card].stream, __ATOMIC_RELAXED) == name))
		return;
	__atomic_store_n(&state[card].stream, name, __ATOMIC_RELAXED);
	__atomic_store_n(&state[card].last, LAUNCHES, __ATOMIC_RELAXED);
}

void vgpu_waits_recorded(CUevent event, CUstream stream)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		const void *last = __atomic_load_n(&state[i].last, __ATOMIC_RELAXED);

		if (last && __atomic_load_n(&state[i].stream, __ATOMIC_RELAXED) == name_of(stream))
			__atomic_store_n(&state[i].last, event, __ATOMIC_RELAXED);
		else if (last == event)
			__atomic_store_n(&state[i].last, LAUNCHES, __ATOMIC_RELAXED);
	}
}

uint64_t vgpu_wait_begins(void)
{
	__atomic_add_fetch(&waiting, 1, __ATOMIC_RELAXED);
	return __atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED) ? vgpu_now() : 0;
}

static bool for_the_last(int card, const void *last, CUstream stream, CUevent event)
{
	if (event)
		return event == last;
	return !stream || name_of(stream) == __atomic_load_n(&state[card].stream, __ATOMIC_RELAXED);
}

void vgpu_waited(CUstream stream, CUevent event, uint64_t began)
{
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();
	const void *last;
	uint32_t *n;

	__atomic_sub_fetch(&waiting, 1, __ATOMIC_RELAXED);
	if (card < 0)
		return;
	if (unlikely(began))
		vgpu_gate_waited(card, began);
	last = __atomic_load_n(&state[card].last, __ATOMIC_RELAXED);
	if (!last || !for_the_last(card, last, stream, event))
		return;
	__atomic_store_n(&state[card].last, NULL, __ATOMIC_RELAXED);
	n = &vgpu_my(card)->syncs;
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

void vgpu_waits_tick(uint64_t now)
{
	static struct {
		uint64_t launches, since_ns;
	} seen[VGPU_MAX_CARDS];

	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		uint64_t *count = &vgpu_my((int)i)->launches;
		uint64_t launches = __atomic_load_n(count, __ATOMIC_RELAXED);
		bool works = __atomic_load_n(&waiting, __ATOMIC_RELAXED) &&
			     __atomic_load_n(&state[i].last, __ATOMIC_RELAXED);

		if (works && launches == seen[i].launches && now - seen[i].since_ns < SIGN_NS)
			continue;
		if (works && launches == seen[i].launches)
			launches = __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
		seen[i].launches = launches;
		seen[i].since_ns = now;
	}
}
