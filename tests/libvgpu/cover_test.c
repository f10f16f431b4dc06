/* SPDX-License-Identifier: Apache-2.0 */
/* cover_test.c - time of streams that run beside each other is charged once, whichever is
 * seen to have ended first. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../libvgpu/compute/cover.h"
#include "check.h"

static bool near(double a, double b)
{
	return fabs(a - b) < 1e-6 * (1 + fabs(b));
}

static void test_order(void)
{
	struct vgpu_cover c = {0};

	CHECK(near(vgpu_cover_add(&c, 0, 10), 10));
	CHECK(near(vgpu_cover_add(&c, 0, 10), 0));
	CHECK(near(vgpu_cover_add(&c, 5, 15), 5));
	CHECK(near(vgpu_cover_add(&c, 20, 30), 10));
	CHECK(near(vgpu_cover_add(&c, 14, 21), 5)); /* late, between two */
	CHECK(near(vgpu_cover_add(&c, -5, 40), 15));
	CHECK(c.n == 1);
	CHECK(near(vgpu_cover_add(&c, 41, 41), 0));
	CHECK(near(vgpu_cover_add(&c, 42, 41), 0));
}

/* A long kernel ends after many short kernels of another stream. */
static void test_long_beside_short(void)
{
	struct vgpu_cover c = {0};
	double sum = 0;

	for (int i = 0; i < 9; i++)
		sum += vgpu_cover_add(&c, 10 * i, 10 * i + 1);
	sum += vgpu_cover_add(&c, 0, 100);
	CHECK(near(sum, 100));
}

static void test_shift(void)
{
	struct vgpu_cover c = {0};

	vgpu_cover_add(&c, 0, 10);
	vgpu_cover_add(&c, 20, 30);
	vgpu_cover_shift(&c, 20);
	CHECK(near(vgpu_cover_add(&c, -20, 10), 10));
}

/* Two streams take turns, and the second is seen much later: more pieces than fit. */
static void test_more_than_fit(void)
{
	struct vgpu_cover c = {0};
	double first = 0, second = 0;
	int n = 5 * VGPU_COVER_PIECES;

	for (int i = 0; i < n; i++)
		first += vgpu_cover_add(&c, 20 * i, 20 * i + 10);
	CHECK(near(first, 10.0 * n));
	CHECK(c.n <= VGPU_COVER_PIECES);
	second = vgpu_cover_add(&c, 0, 20.0 * n);
	CHECK(near(second, 10.0 * n));
}

/* Two streams work beside each other, with pauses, and of one several batches are seen before
 * those of the other: whatever was covered long ago, what they cover now is charged once. */
static void test_pauses(void)
{
	struct vgpu_cover c = {0};
	double at = 0, pause = 1000;

	for (int i = 0; i < 3 * VGPU_COVER_PIECES; i++, pause -= 5) {
		for (int k = 0; k < 3; k++)
			CHECK(near(vgpu_cover_add(&c, at + k * pause, at + k * pause + 10), 10));
		for (int k = 0; k < 3; k++)
			CHECK(near(vgpu_cover_add(&c, at + k * pause + 1, at + k * pause + 11), 1));
		at += 3 * pause;
	}
}

/* Against a line of cells. */
static void test_random(void)
{
	enum { CELLS = 200 };
	uint64_t random_state = 1;

	for (int run = 0; run < 2000; run++) {
		struct vgpu_cover c = {0};
		bool covered[CELLS] = {false};

		for (int i = 0; i < 15; i++) {
			unsigned begin, length, fresh = 0;

			random_state =
				random_state * 6364136223846793005ull + 1442695040888963407ull;
			begin = (unsigned)(random_state >> 40) % CELLS;
			length = (unsigned)(random_state >> 20) % 40 % (CELLS - begin);
			for (unsigned k = begin; k < begin + length; k++) {
				fresh += !covered[k];
				covered[k] = true;
			}
			CHECK(near(vgpu_cover_add(&c, begin, begin + length), fresh));
		}
	}
}

int main(void)
{
	test_order();
	test_long_beside_short();
	test_shift();
	test_more_than_fit();
	test_pauses();
	test_random();
	return done("cover");
}
