/* SPDX-License-Identifier: Apache-2.0 */
/* beside.c - see beside.h. Who else of the job has work on the card. */
#include "beside.h"
#include "own_time.h"

/* Killed, or stopped for some heartbeats, or of another boot: nobody says that what it had in
 * flight has ended. */
static bool gone(const struct vgpu_slot *s, uint64_t now)
{
	uint64_t beat = __atomic_load_n(&s->heartbeat_ns, __ATOMIC_RELAXED);

	return __atomic_load_n(&s->died_ns, __ATOMIC_RELAXED) || now > beat + 3 * HEARTBEAT_NS ||
	       beat > now + 3 * HEARTBEAT_NS;
}

uint64_t vgpu_inflight_beside(const struct gate *g, uint64_t now, uint32_t *procs)
{
	const struct vgpu_cache *c = &vgpu_state.cache;
	uint32_t high = vgpu_slots_in_use(c); /* bounded: any process of the job can write it */
	uint64_t sum = 0, one;

	*procs = 0;
	for (uint32_t i = 0; i < high; i++) {
		if (&c->slots[i] == vgpu_state.slot ||
		    !__atomic_load_n(&c->slots[i].owner, __ATOMIC_RELAXED))
			continue;
		one = __atomic_load_n(&c->slots[i].card[g->card].inflight_ns, __ATOMIC_RELAXED);
		if (!one || gone(&c->slots[i], now))
			continue;
		*procs += 1;
		sum += one;
	}
	return sum;
}

/* Contexts of this process with work, but one: the card divides itself between them too. */
static uint32_t more_contexts(const struct gate *g)
{
	uint32_t n = g->queues_since_ns != 0; /* another API's */
	bool some[CONTEXTS] = {false};

	for (unsigned i = 0; i < g->lanes; i++) {
		const struct lane *l = &g->lane[i];

		if (!l->closed && !l->open)
			continue;
		n += !some[l->context - g->context];
		some[l->context - g->context] = true;
	}
	return n ? n - 1 : 0;
}

void vgpu_gate_beside(struct gate *g, uint64_t now)
{
	g->own_ns = vgpu_gate_own(g, now);
	g->own_at_ns = now;
	vgpu_inflight_beside(g, now, &g->procs);
	g->beside = g->procs + more_contexts(g);
}
