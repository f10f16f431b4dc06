/* SPDX-License-Identifier: Apache-2.0 */
/* ended_test.c - slots of other PID namespaces, of which gresd says who has ended. */
#include <errno.h>

#include "cache.h"

/* A slot as a process of another namespace has it, with this much memory. */
static struct vgpu_slot *foreign(struct vgpu_cache *c, unsigned i, uint32_t pid, uint64_t mem)
{
	uint64_t ns = vgpu_pid_ns() + 1;
	struct vgpu_slot *s = &c->slots[i];

	s->owner = vgpu_owner_word((uint32_t)(ns % VGPU_NS_UNKNOWN), pid, 7);
	s->pid_ns = ns;
	s->pid = pid;
	s->card[0].mem = mem;
	if (c->header->high_slot < i + 1)
		c->header->high_slot = i + 1;
	return s;
}

static void wait_ns(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ns + 1000000}, NULL);
}

static void test_told_slots_are_freed_after_the_grace(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c), *dead = foreign(&c, 1, 5, 400);
	struct vgpu_slot *living = foreign(&c, 2, 6, 300);
	struct vgpu_ended told = {.n = 1, .owner = {dead->owner}};
	uint64_t left, began = now_ms();

	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 300, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_unjudged(&c, 0), 700);
	/* Not told, nobody is dead. */
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, NULL, &left), 0);
	CHECK_EQ(left, 0);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, &told, &left), 0);
	CHECK(left > VGPU_GRACE_NS / 2 && left <= VGPU_GRACE_NS);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 100, LIMIT, 0), -ENOMEM);
	wait_ns(left);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, &told, &left), 1);
	CHECK_EQ(left, 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
	CHECK_EQ(dead->owner, 0);
	CHECK_EQ(living->card[0].mem, 300);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 400, LIMIT, 0), 0);
}

/* An answer may come late: the slot is another's by then. */
static void test_an_answer_names_owners_and_not_slots(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *slot = foreign(&c, 1, 5, 400);
	struct vgpu_ended told = {.n = 1, .owner = {slot->owner}};
	uint64_t left;

	CHECK(claim(&c) != NULL);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, &told, &left), 0);
	wait_ns(left);
	foreign(&c, 1, 6, 400);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, &told, &left), 0);
	CHECK_EQ(slot->card[0].mem, 400);
	CHECK_EQ(slot->owner, vgpu_owner_word((uint32_t)(slot->pid_ns % VGPU_NS_UNKNOWN), 6, 7));
}

/* Whoever clears a slot of another namespace is its owner meanwhile, with the other's
 * namespace in the field: its own peers judge it all the same. */
static void test_who_dies_while_clearing_is_seen_dead(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *slot = foreign(&c, 1, 5, 400);
	uint64_t left;

	CHECK(claim(&c) != NULL);
	slot->owner = vgpu_owner((uint32_t)getpid(), vgpu_own_start_time() - 1); /* of a dead one */
	CHECK_EQ(vgpu_mem_unjudged(&c, 0), 0);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, NULL, &left), 0);
	CHECK(left > 0);
	wait_ns(left);
	CHECK_EQ(vgpu_slot_reclaim(&c, NULL, NULL, &left), 1);
	CHECK_EQ(slot->owner, 0);
}

int main(void)
{
	test_told_slots_are_freed_after_the_grace();
	test_an_answer_names_owners_and_not_slots();
	test_who_dies_while_clearing_is_seen_dead();
	return done("ended");
}
