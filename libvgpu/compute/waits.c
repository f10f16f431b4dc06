/* SPDX-License-Identifier: Apache-2.0 */
/* waits.c - see waits.h. Takes no lock and makes no call of the driver. */
#include "waits.h"
#include "../job/cards.h"
#include "gates.h"

/* Well below the time for which gresd believes a launch. */
#define SIGN_NS 50000000u

/* Launches are behind the last event, if there is one. */
#define LAUNCHES ((const void *)-1)

static VGPU_PRIVATE struct {
	const void *stream; /* of the last launch; of a thread's own default stream, the thread */
	const void *last;   /* LAUNCHES, the event behind them, or NULL: the host has waited */
} state[VGPU_MAX_CARDS];
static VGPU_PRIVATE unsigned waiting; /* threads */

static const void *name_of(CUstream stream)
{
	const void *thread = vgpu_stream_thread(stream);

	return thread ? thread : stream;
}

void vgpu_waits_launched(int card, CUstream stream)
{
	const void *name = name_of(stream);

	if (likely(LOAD(&state[card].last) == LAUNCHES && LOAD(&state[card].stream) == name))
		return;
	STORE(&state[card].stream, name);
	STORE(&state[card].last, LAUNCHES);
}

void vgpu_waits_recorded(CUevent event, CUstream stream)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		const void *last = LOAD(&state[i].last);

		if (last && LOAD(&state[i].stream) == name_of(stream))
			STORE(&state[i].last, event);
		else if (last == event)
			STORE(&state[i].last, LAUNCHES);
	}
}

uint64_t vgpu_wait_begins(void)
{
	ADD(&waiting, 1);
	return LOAD(&vgpu_gate_any) ? vgpu_now() : 0;
}

static bool for_the_last(int card, const void *last, CUstream stream, CUevent event)
{
	if (event)
		return event == last;
	return !stream || name_of(stream) == LOAD(&state[card].stream);
}

void vgpu_waited(CUstream stream, CUevent event, uint64_t began)
{
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();
	const void *last;
	uint32_t *n;

	SUB(&waiting, 1);
	if (card < 0)
		return;
	if (unlikely(began))
		vgpu_gate_waited(card, stream, !event);
	last = LOAD(&state[card].last);
	if (!last || !for_the_last(card, last, stream, event))
		return;
	STORE(&state[card].last, NULL);
	n = &vgpu_my(card)->syncs;
	STORE(n, LOAD(n) + 1);
}

void vgpu_waits_tick(uint64_t now)
{
	static VGPU_PRIVATE uint64_t next_ns;

	if (now < next_ns || !LOAD(&waiting))
		return;
	next_ns = now + SIGN_NS;
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		if (LOAD(&state[i].last))
			ADD(&vgpu_my((int)i)->launches, 1);
}
