/* SPDX-License-Identifier: Apache-2.0 */
/* region_ops.c - see region_ops.h and the protocol in region.h. */
#define _GNU_SOURCE
#include "region_ops.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* A test build stops or kills the process at a numbered step of the protocol. */
#ifndef VGPU_PAUSE
#define VGPU_PAUSE(step) ((void)0)
#endif

/* How often an allocation that does not fit looks again: another process may
 * have announced bytes that it is about to take back. */
#define RESERVE_TRIES 4
#define COOLING_NS 10000000L
#define SEQ_TRIES 1000

bool vgpu_grant_valid(const void *grant, size_t size)
{
	const struct vgpu_grant *g = grant;

	return size >= sizeof *g && g->magic == VGPU_GRANT_MAGIC &&
	       g->version == VGPU_REGION_VERSION && g->ncards <= VGPU_MAX_CARDS;
}

bool vgpu_cache_valid(const struct vgpu_cache_header *h, size_t size)
{
	return h->magic == VGPU_CACHE_MAGIC && h->version == VGPU_REGION_VERSION &&
	       h->ncards <= VGPU_MAX_CARDS && h->max_slots <= VGPU_MAX_SLOTS &&
	       size >= VGPU_SLOTS_OFFSET + h->max_slots * sizeof(struct vgpu_slot);
}

void vgpu_cache_init(struct vgpu_cache_header *h, const struct vgpu_grant *g)
{
	h->version = VGPU_REGION_VERSION;
	h->size = (uint32_t)(VGPU_CACHE_SIZE - VGPU_CACHE_OFFSET);
	h->job_id = g->job_id;
	h->uid = g->uid;
	h->ncards = g->ncards;
	h->max_slots = VGPU_MAX_SLOTS;
	for (unsigned i = 0; i < g->ncards && i < VGPU_MAX_CARDS; i++) {
		memcpy(h->uuid[i], g->card[i].uuid, VGPU_UUID_LEN);
		h->mem_limit[i] = g->card[i].mem_limit;
		h->credited_us[i] = (uint32_t)(g->card[i].credit_ns / 1000);
	}
	STORE(&h->magic, VGPU_CACHE_MAGIC);
}

bool vgpu_schedule_read(const struct vgpu_grant *g, unsigned i, struct vgpu_schedule *s,
			uint64_t now_ns)
{
	const struct vgpu_grant_card *c = &g->card[i];

	for (int n = 0; n < SEQ_TRIES; n++) {
		uint32_t before = LOAD(&c->seq);

		if (before & 1)
			continue;
		s->cores = LOAD(&c->cores);
		s->slice_us = LOAD(&c->slice_us);
		s->gate = LOAD(&c->gate);
		s->weight_ppm = LOAD(&c->weight_ppm);
		s->least_ppm = LOAD(&c->least_ppm);
		s->others = LOAD(&c->others);
		s->turn_period_us = LOAD(&c->turn_period_us);
		s->turn_queue_us = LOAD(&c->turn_queue_us);
		s->turn_length_us = LOAD(&c->turn_length_us);
		s->turn_begin_ns = LOAD(&c->turn_begin_ns);
		s->lease_ns = LOAD(&c->lease_ns);
		s->solo = LOAD(&c->solo);
		if (LOAD(&c->seq) != before)
			continue;
		s->seq = before;
		if (s->lease_ns && now_ns > s->lease_ns)
			s->gate = VGPU_GATE_BUDGET;
		return true;
	}
	return false;
}

int (*vgpu_clock)(clockid_t, struct timespec *) = clock_gettime;

uint64_t vgpu_now(void)
{
	struct timespec ts;

	vgpu_clock(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The part of died_ns that names who died; the rest is the time, to 65 us. */
#define MARK 0xffffu

uint64_t vgpu_death_note(uint64_t owner, uint64_t now_ns)
{
	return (now_ns & ~(uint64_t)MARK) | owner * 0x9e3779b97f4a7c15u >> 48;
}

/* How long the slot of a process that is dead still counts; notes the death at first
 * sight. Whoever judged an owner dead may come to note it when the slot has long been
 * another's, so a note counts only for whom it names: else that one would have no
 * grace (tests/model/memory.pml, BREAK_MARK). */
static uint64_t grace_left(struct vgpu_slot *slot, uint64_t owner)
{
	uint64_t now = vgpu_now(), died = LOAD(&slot->died_ns), note = vgpu_death_note(owner, now);
	uint64_t age = now - (died & ~(uint64_t)MARK);

	/* A time that lies ahead is of another boot or time namespace. */
	if (died == 0 || (died ^ note) & MARK || (died & ~(uint64_t)MARK) > now) {
		CAS(&slot->died_ns, &died, note);
		return VGPU_GRACE_NS;
	}
	return age < VGPU_GRACE_NS ? VGPU_GRACE_NS - age : 0;
}

static void slot_clear(struct vgpu_slot *slot)
{
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++)
		STORE(&slot->card[i].mem, 0);
	memset((char *)slot + sizeof slot->owner, 0, sizeof *slot - sizeof slot->owner);
}

/* Every process of the job may write the header, at any time: the mapping holds
 * VGPU_MAX_SLOTS, whatever it says. */
static uint32_t slot_count(const struct vgpu_cache *c)
{
	uint32_t n = LOAD(&c->header->max_slots);

	return n < VGPU_MAX_SLOTS ? n : VGPU_MAX_SLOTS;
}

uint32_t vgpu_slots_in_use(const struct vgpu_cache *c)
{
	uint32_t high = LOAD(&c->header->high_slot), n = slot_count(c);

	return high < n ? high : n;
}

/* A program that called exec left a slot behind whose owner lives: itself. The slot
 * becomes that of a process which is dead for everybody, since nobody else has this
 * pid, and no process that had it before lives. */
static void leave_old_slots(struct vgpu_cache *c, const struct vgpu_judge *j, uint64_t me,
			    uint64_t dead)
{
	uint32_t count = vgpu_slots_in_use(c);

	for (uint32_t i = 0; i < count; i++) {
		uint64_t owner = me;

		if (vgpu_same_ns(j, &c->slots[i], me))
			CAS(&c->slots[i].owner, &owner, dead);
	}
}

struct vgpu_slot *vgpu_slot_claim(struct vgpu_cache *c, uint32_t pid, uint64_t start_time)
{
	struct vgpu_judge j = vgpu_judge();
	uint64_t me = vgpu_owner_word(j.ns, pid, start_time);
	uint32_t count = slot_count(c);

	leave_old_slots(c, &j, me, vgpu_owner_word(j.ns, pid, start_time - 1));
	for (uint32_t i = 0; i < count; i++) {
		struct vgpu_slot *slot = &c->slots[i];
		uint64_t owner;
		uint32_t high;

		if (i >= LOAD(&c->header->high_slot) && !vgpu_has_pages(slot, sizeof *slot))
			return NULL;
		owner = LOAD(&slot->owner);
		if (owner != 0 && (!vgpu_same_ns(&j, slot, owner) || !vgpu_has_ended(owner) ||
				   grace_left(slot, owner)))
			continue;
		/* Raise the mark first: owned but not summed, it would hide memory. */
		high = LOAD(&c->header->high_slot);
		while (high < i + 1 && !CAS(&c->header->high_slot, &high, i + 1))
			;
		VGPU_PAUSE(1);
		if (!CAS(&slot->owner, &owner, me))
			continue;
		VGPU_PAUSE(2);
		slot_clear(slot);
		VGPU_PAUSE(3);
		slot->pid = pid;
		slot->start_time = start_time;
		STORE(&slot->pid_ns, j.pid_ns);
		/* Seen before that, it may have passed for dead. */
		STORE(&slot->died_ns, 0);
		return slot;
	}
	return NULL;
}

void vgpu_slot_release(struct vgpu_slot *slot)
{
	slot_clear(slot);
	VGPU_PAUSE(10);
	STORE(&slot->owner, 0);
}

static bool ended(const struct vgpu_judge *j, const struct vgpu_slot *slot, uint64_t owner,
		  const struct vgpu_ended *told)
{
	if (vgpu_same_ns(j, slot, owner))
		return vgpu_has_ended(owner);
	for (unsigned i = 0; told && i < told->n; i++)
		if (told->owner[i] == owner)
			return true;
	return false;
}

unsigned vgpu_slot_reclaim(struct vgpu_cache *c, const struct vgpu_slot *self,
			   const struct vgpu_ended *told, uint64_t *left_ns)
{
	uint32_t count = vgpu_slots_in_use(c);
	struct vgpu_judge j = vgpu_judge();
	uint64_t me = vgpu_owner_word(j.ns, (uint32_t)getpid(), vgpu_own_start_time());
	unsigned n = 0;

	*left_ns = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct vgpu_slot *slot = &c->slots[i];
		uint64_t owner = LOAD(&slot->owner), left;

		if (owner == 0 || slot == self || owner == me || !ended(&j, slot, owner, told))
			continue;
		left = grace_left(slot, owner);
		if (left) {
			*left_ns = left > *left_ns ? left : *left_ns;
			continue;
		}
		/* Become its owner while clearing it, so that nobody else clears
		 * it at the same time; should this process die here, the slot is
		 * one of a dead process again. */
		if (!CAS(&slot->owner, &owner, me))
			continue;
		VGPU_PAUSE(4);
		vgpu_slot_release(slot);
		VGPU_PAUSE(5);
		n++;
	}
	return n;
}

/* j: only of slots that it cannot judge. A slot with a forged sum must not make room. */
static uint64_t sum_of(const struct vgpu_cache *c, unsigned card, const struct vgpu_judge *j)
{
	uint32_t count = vgpu_slots_in_use(c);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct vgpu_slot *slot = &c->slots[i];
		uint64_t owner = j ? LOAD(&slot->owner) : 0;

		if (j && (!owner || vgpu_same_ns(j, slot, owner)))
			continue;
		if (__builtin_add_overflow(sum, LOAD(&slot->card[card].mem), &sum))
			return UINT64_MAX;
	}
	return sum;
}

uint64_t vgpu_mem_unjudged(const struct vgpu_cache *c, unsigned card)
{
	struct vgpu_judge j = vgpu_judge();

	return sum_of(c, card, &j);
}

uint64_t vgpu_mem_sum(const struct vgpu_cache *c, unsigned card)
{
	return sum_of(c, card, NULL);
}

uint64_t vgpu_mem_with(uint64_t sum, int64_t outside)
{
	if (outside >= 0)
		return sum > UINT64_MAX - (uint64_t)outside ? UINT64_MAX : sum + (uint64_t)outside;
	return sum > 0 - (uint64_t)outside ? sum + (uint64_t)outside : 0;
}

/* A process of the caller's PID namespace that has ended counts against the limit until its memory is
 * surely free, but it uses none. Asks /proc first: a sandbox may end a process that calls kill. */
static bool uses_none(const struct vgpu_slot *slot, unsigned card, uint64_t own)
{
	uint64_t owner = LOAD(&slot->owner);

	if (!LOAD(&slot->card[card].mem))
		return true;
	return owner != own && VGPU_OWNER_NS(owner) == VGPU_OWNER_NS(own) &&
	       VGPU_OWNER_NS(own) != VGPU_NS_UNKNOWN && vgpu_has_ended(owner);
}

/* Raises the peak of the card. A plain sum is enough to know that there is nothing new. */
static void note_peak(struct vgpu_cache *c, const struct vgpu_slot *self, unsigned card,
		      uint64_t sum, int64_t outside)
{
	uint64_t *peak = &c->header->mem_peak[card], own = LOAD(&self->owner), old = LOAD(peak);
	uint32_t count = vgpu_slots_in_use(c);

	if (sum <= old)
		return;
	sum = 0;
	for (uint32_t i = 0; i < count; i++)
		if (!uses_none(&c->slots[i], card, own) &&
		    __builtin_add_overflow(sum, LOAD(&c->slots[i].card[card].mem), &sum))
			return;
	sum = vgpu_mem_with(sum, outside);
	while (old < sum && !CAS(peak, &old, sum))
		;
}

int vgpu_mem_reserve(struct vgpu_cache *c, struct vgpu_slot *self, unsigned card, uint64_t bytes,
		     uint64_t limit, int64_t outside)
{
	uint64_t *mine = &self->card[card].mem;
	uint64_t seen = 0, began = 0;

	if (limit == 0) {
		ADD(mine, bytes);
		return 0;
	}
	if (bytes > limit || bytes > UINT64_MAX - LOAD(mine))
		return -ENOMEM;
	for (int try = 0; try < RESERVE_TRIES;) {
		uint64_t sum, cooling;

		ADD(mine, bytes);
		VGPU_PAUSE(6);
		sum = vgpu_mem_with(vgpu_mem_sum(c, card), outside);
		VGPU_PAUSE(7);
		if (sum <= limit) {
			note_peak(c, self, card, sum, outside);
			return 0;
		}
		SUB(mine, bytes);
		VGPU_PAUSE(8);
		if (vgpu_slot_reclaim(c, self, NULL, &cooling) > 0)
			continue;
		/* A little longer than the grace: its end must be seen. */
		if (cooling &&
		    (began == 0 || vgpu_now() - began < VGPU_GRACE_NS + COOLING_NS * 2)) {
			began = began ? began : vgpu_now();
			nanosleep(&(struct timespec){.tv_nsec = COOLING_NS}, NULL);
			continue;
		}
		/* The same sum twice: nobody was about to take bytes back. */
		if (sum == seen)
			break;
		seen = sum;
		try++;
		nanosleep(&(struct timespec){.tv_nsec =
						     20000L + (long)(self - c->slots) % 16 * 5000},
			  NULL);
	}
	return -ENOMEM;
}

void vgpu_mem_release(struct vgpu_slot *self, unsigned card, uint64_t bytes)
{
	uint64_t *mine = &self->card[card].mem;
	uint64_t old = LOAD(mine);

	VGPU_PAUSE(9);
	while (!CAS(mine, &old, old > bytes ? old - bytes : 0))
		;
}
