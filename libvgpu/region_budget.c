/* SPDX-License-Identifier: Apache-2.0 */
/* region_budget.c - the budget of GPU time, turns and windows: see region_ops.h. */
#include "region_ops.h"

/* Work that should be done and is not is looked at again then. */
#define TURN_RECHECK_NS 600000u
/* So far ahead lies only the time of another clock, as that of another boot or time
 * namespace: processes take the time, and are late to note it. */
#define AHEAD_NS 1000000000u

void vgpu_budget_refill(struct vgpu_budget *b, uint64_t now_ns, uint32_t cores, int64_t most_ns)
{
	uint64_t last = LOAD(&b->refilled_ns);
	int64_t balance;

	if (last == 0) {
		if (CAS(&b->refilled_ns, &last, now_ns))
			STORE(&b->balance_ns, most_ns);
		return;
	}
	if (last > now_ns + AHEAD_NS) {
		if (!CAS(&b->refilled_ns, &last, now_ns))
			return;
		/* What that clock gave is worth nothing by this one; a debt stays. */
		balance = LOAD(&b->balance_ns);
		while (balance > most_ns && !CAS(&b->balance_ns, &balance, most_ns))
			;
		return;
	}
	if (now_ns <= last || !CAS(&b->refilled_ns, &last, now_ns))
		return;
	balance = ADD(&b->balance_ns, (int64_t)((now_ns - last) * cores / 100));
	while (balance > most_ns && !CAS(&b->balance_ns, &balance, most_ns))
		;
}

void vgpu_budget_credit(const struct vgpu_grant *g, struct vgpu_cache_header *h, int i,
			int64_t most_ns)
{
	uint32_t done = LOAD(&h->credited_us[i]);
	int32_t change = (int32_t)((uint32_t)(LOAD(&g->card[i].credit_ns) / 1000) - done);
	int64_t room;

	/* The job can write any balance. */
	if (__builtin_sub_overflow(most_ns, LOAD(&h->budget[i].balance_ns), &room))
		room = INT64_MAX;
	if (change > 0 && room / 1000 < change)
		change = room > 0 ? (int32_t)(room / 1000) : 0;
	if (change && CAS(&h->credited_us[i], &done, done + (uint32_t)change))
		ADD(&h->budget[i].balance_ns, change * 1000ll);
}

uint64_t vgpu_budget_wait(const struct vgpu_budget *b, uint32_t cores, uint32_t wanted_ns)
{
	int64_t balance = LOAD(&b->balance_ns);
	uint64_t debt = wanted_ns - (uint64_t)balance;

	if (balance >= (int64_t)wanted_ns)
		return 0;
	if (cores == 0)
		cores = 1;
	return debt > UINT64_MAX / 100 ? UINT64_MAX : debt * 100 / cores;
}

uint64_t vgpu_turn_wait(const struct vgpu_schedule *s, uint64_t now_ns, uint64_t start_ns)
{
	uint64_t period = s->turn_period_us * 1000ull, length = s->turn_length_us * 1000ull;

	if (period == 0)
		return 0;
	if (start_ns < now_ns)
		start_ns = now_ns;
	if (start_ns < s->turn_begin_ns)
		return s->turn_begin_ns - now_ns;
	if (length >= period)
		return 0;
	uint64_t at = start_ns - s->turn_begin_ns;
	if (at < length)
		return 0;
	/* What follows is only for the case that gresd is gone. */
	if (at < VGPU_TURN_ALONE_NS)
		start_ns = s->turn_begin_ns + VGPU_TURN_ALONE_NS;
	at = (start_ns - s->turn_begin_ns) % period;
	if (at < length)
		return start_ns - now_ns;
	return start_ns - at + period - now_ns;
}

uint64_t vgpu_window_wait(const struct vgpu_schedule *s, uint64_t now_ns, uint64_t start_ns,
			  bool first)
{
	uint64_t period = s->turn_period_us * 1000ull, length = s->turn_length_us * 1000ull;

	if (period == 0 || length >= period)
		return 0;
	uint64_t at = now_ns % period;
	if (start_ns > now_ns && !(first && at < length / 8))
		at += start_ns - now_ns;
	return at < length ? 0 : period - now_ns % period;
}

uint64_t vgpu_turn_until(struct vgpu_turn_state *t, uint64_t now_ns, uint64_t inflight_ns,
			 uint64_t least_ns)
{
	uint64_t until = LOAD(&t->until_ns), better = until;

	STORE(&t->inflight_ns, inflight_ns);
	/* Both are upper bounds: of the launched work some may be done, and of the
	 * work in flight. But the first one is too low where work took longer. */
	if (until > now_ns + inflight_ns)
		better = now_ns + inflight_ns;
	else if (until <= now_ns && inflight_ns)
		better = now_ns + (inflight_ns < TURN_RECHECK_NS ? inflight_ns : TURN_RECHECK_NS);
	if (better < now_ns + least_ns)
		better = now_ns + least_ns;
	/* Lost to another process: that one has just estimated too. */
	if (better != until)
		CAS(&t->until_ns, &until, better);
	return better > now_ns ? better : now_ns;
}

void vgpu_turn_launched(struct vgpu_turn_state *t, uint64_t now_ns, uint64_t work_ns)
{
	uint64_t until = LOAD(&t->until_ns);

	STORE(&t->wanted_ns, now_ns);
	ADD(&t->inflight_ns, work_ns);
	while (!CAS(&t->until_ns, &until, (until > now_ns ? until : now_ns) + work_ns))
		;
}
