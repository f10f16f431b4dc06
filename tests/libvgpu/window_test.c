/* SPDX-License-Identifier: Apache-2.0 */
/* window_test.c - when a launch may go, by window (region_budget.c). */
#include "../../libvgpu/region_ops.h"
#include "check.h"

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
	/* From 4 ms on, in the periods before the beginning, too. */
	for (int i = -1; i <= 1; i++) {
		uint64_t at = base + 4 * ms;

		s.turn_begin_ns = at + (uint64_t)i * 20 * ms;
		CHECK_EQ(vgpu_window_wait(&s, base, base, true), 4 * ms);
		CHECK_EQ(vgpu_window_wait(&s, at, at, true), 0);
		CHECK_EQ(vgpu_window_wait(&s, at + 8 * ms - 1, 0, true), 0);
		CHECK_EQ(vgpu_window_wait(&s, at + 8 * ms, 0, true), 12 * ms);
		CHECK_EQ(vgpu_window_wait(&s, at + 7 * ms, at + 8 * ms, false), 13 * ms);
	}
	s.turn_length_us = 20000; /* always open */
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, false), 0);
	s.turn_period_us = 0;
	CHECK_EQ(vgpu_window_wait(&s, base, base + 50 * ms, false), 0);
}

int main(void)
{
	test_windows();
	return done("window");
}
