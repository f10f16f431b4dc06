/* SPDX-License-Identifier: Apache-2.0 */
/* death_test.c - whose death a slot notes, and what exec leaves behind. */
#include <sys/wait.h>

#include "cache.h"

/* Whoever saw the death of a slot's last owner may note it when the slot is
 * another's already: that one has its own grace all the same. */
static void test_a_note_of_another_death_is_none(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	pid_t child = fork();
	uint64_t began;

	if (child == 0) {
		struct vgpu_slot *s = claim(&c);

		_exit(s && vgpu_mem_reserve(&c, s, 0, 900, LIMIT, 0) == 0 ? 0 : 1);
	}
	CHECK(waitpid(child, NULL, 0) == child);
	c.slots[1].died_ns = vgpu_death_note(c.slots[1].owner ^ 1, 1 << 20);
	began = now_ms();
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1000, LIMIT, 0), 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
}

/* After exec a process has its pid and start time still, but not its memory. */
static void test_exec_leaves_no_memory_behind(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *old = claim(&c), *mine;
	uint64_t began;

	CHECK_EQ(vgpu_mem_reserve(&c, old, 0, 900, LIMIT, 0), 0);
	mine = claim(&c); /* as the next program does */
	CHECK(mine && mine != old);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 900);
	began = now_ms();
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1000, LIMIT, 0), 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
	CHECK_EQ(old->owner, 0);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 1000);
}

int main(void)
{
	test_a_note_of_another_death_is_none();
	test_exec_leaves_no_memory_behind();
	return done("death");
}
