/* SPDX-License-Identifier: Apache-2.0 */
/* turn_test.c - when a launch may go, by turn and by window (region_budget.c). */
#include "../../libvgpu/region_ops.h"
#include "check.h"

static void test_turns(void)
{
	/* 20 ms period; ours is 6 ms from 4 ms on. */
	const uint64_t ms = 1000000, base = 20 * ms * 1000, alone = VGPU_TURN_ALONE_NS;
	struct vgpu_schedule s = {.turn_period_us = 20000,
				  .turn_begin_ns = base + 4 * ms,
				  .turn_length_us = 6000};

#define WAIT(now, start) vgpu_turn_wait(&s, base + (now), base + (start))
	CHECK_EQ(WAIT(0, 0), 4 * ms);
	CHECK_EQ(WAIT(0, 3 * ms), 4 * ms);
	CHECK_EQ(WAIT(3 * ms, 5 * ms), 0); /* behind work that ends in the turn */
	CHECK_EQ(WAIT(4 * ms, 4 * ms), 0);
	CHECK_EQ(WAIT(5 * ms, 0), 0); /* the other work has ended */
	CHECK_EQ(WAIT(10 * ms - 1, 10 * ms - 1), 0);
	/* gresd will deal the next turn; until it must be gone, nothing goes. */
	CHECK_EQ(WAIT(9 * ms, 10 * ms), alone - 5 * ms);
	CHECK_EQ(WAIT(10 * ms, 10 * ms), alone - 6 * ms);
	CHECK_EQ(WAIT(24 * ms, 24 * ms), alone - 20 * ms);
	/* It is gone: every period, begin + 200 ms being one of them. */
	CHECK_EQ(WAIT(4 * ms + alone, 4 * ms + alone), 0);
	CHECK_EQ(WAIT(10 * ms + alone, 10 * ms + alone), 14 * ms);
	CHECK_EQ(WAIT(25 * ms + alone, 25 * ms + alone), 0);
	s.turn_length_us = 20000; /* no end, but a beginning */
	CHECK_EQ(WAIT(400 * ms, 400 * ms), 0);
	CHECK_EQ(WAIT(0, 0), 4 * ms);
	s.turn_period_us = 0; /* no turns */
	CHECK_EQ(WAIT(0, 0), 0);
#undef WAIT
}

static void test_turn_state(void)
{
	struct vgpu_turn_state t = {0};
	const uint64_t ms = 1000000;

	CHECK_EQ(vgpu_turn_until(&t, 100 * ms, 0, 0), 100 * ms); /* nothing launched */
	vgpu_turn_launched(&t, 100 * ms, 2 * ms);
	vgpu_turn_launched(&t, 101 * ms, 5 * ms);
	CHECK_EQ(t.until_ns, 107 * ms);
	CHECK_EQ(t.wanted_ns, 101 * ms);
	CHECK_EQ(t.inflight_ns, 7 * ms);
	/* The first was seen complete. */
	CHECK_EQ(vgpu_turn_until(&t, 103 * ms, 5 * ms, 0), 107 * ms);
	CHECK_EQ(t.inflight_ns, 5 * ms);
	/* Done earlier than estimated. */
	CHECK_EQ(vgpu_turn_until(&t, 104 * ms, 1 * ms, 0), 105 * ms);
	CHECK_EQ(vgpu_turn_until(&t, 104 * ms, 0, 0), 104 * ms);
	/* Later than estimated: it says that it still runs, for a short time. */
	vgpu_turn_launched(&t, 200 * ms, 2 * ms);
	CHECK(vgpu_turn_until(&t, 203 * ms, 2 * ms, 0) > 203 * ms);
	CHECK(vgpu_turn_until(&t, 203 * ms, 2 * ms, 0) < 204 * ms);
	/* And for as long as it certainly does. */
	CHECK_EQ(vgpu_turn_until(&t, 203 * ms, 3 * ms, 2 * ms), 205 * ms);
	CHECK_EQ(vgpu_turn_until(&t, 203 * ms, 3 * ms, 1 * ms), 205 * ms);
	/* After a pause it counts from now, not from the end of the last. */
	vgpu_turn_until(&t, 210 * ms, 0, 0);
	vgpu_turn_launched(&t, 300 * ms, ms);
	CHECK_EQ(t.until_ns, 301 * ms);
}

static void test_windows(void)
{
	/* 20 ms period, the first 8 are open. */
	struct vgpu_schedule s = {.turn_period_us = 20000, .turn_length_us = 8000};
	uint64_t ms = 1000000, base = 20 * ms * 1000;

	CHECK_EQ(vgpu_window_wait(&s, base, base, false), 0);
	CHECK_EQ(vgpu_window_wait(&s, base + 7 * ms, base + 7 * ms, false), 0);
	CHECK_EQ(vgpu_window_wait(&s, base + 8 * ms, base + 8 * ms, false), 12 * ms);
	/* Open now, but the work would begin after the end. */
	CHECK_EQ(vgpu_window_wait(&s, base + 7 * ms, base + 9 * ms, false), 13 * ms);
	/* A window further: not through the closed time. */
	CHECK_EQ(vgpu_window_wait(&s, base + 7 * ms, base + 21 * ms, false), 13 * ms);
	/* Too long for any window: at the beginning of one, with nothing in flight. */
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, true), 0);
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, false), 20 * ms);
	CHECK_EQ(vgpu_window_wait(&s, base + 2 * ms, base + 50 * ms, true), 18 * ms);
	s.turn_length_us = 20000;
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, false), 0);
	s.turn_period_us = 0;
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, false), 0);
}

int main(void)
{
	test_turns();
	test_turn_state();
	test_windows();
	return done("turn");
}
