/* SPDX-License-Identifier: Apache-2.0 */
/* region_budget.c - the budget of GPU time, and windows: see region_ops.h. */
#include "region_ops.h"

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

uint64_t vgpu_window_wait(const struct vgpu_schedule *s, uint64_t now_ns, uint64_t start_ns,
			  bool first)
{
	uint64_t period = s->turn_period_us * 1000ull, length = s->turn_length_us * 1000ull;

	if (period == 0 || length >= period)
		return 0;
	uint64_t since = (now_ns % period + period - s->turn_begin_ns % period) % period;
	uint64_t at = since;
	if (start_ns > now_ns && !(first && at < length / 8))
		at += start_ns - now_ns;
	return at < length ? 0 : period - since;
}
