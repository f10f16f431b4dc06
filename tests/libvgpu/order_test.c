/* SPDX-License-Identifier: Apache-2.0 */
/* order_test.c - whose launch goes next (region_order.c). */
#include <pthread.h>
#include <sched.h>

#include "../../libvgpu/region_ops.h"
#include "check.h"

#define MS 1000000ull
/* Milliseconds of the clock wrap at 32 bits: the test runs over that. */
#define BASE ((1ull << 32) * MS - 5 * MS)

static void test_longest_waiting_is_first(void)
{
	struct vgpu_budget b = {0};

	CHECK(vgpu_order_first(&b, BASE + 2, BASE + 2)); /* alone */
	CHECK(vgpu_order_first(&b, BASE + 2, BASE + 3)); /* and still */
	CHECK(!vgpu_order_first(&b, BASE + 9, BASE + 9));
	/* One that began earlier, and looks only now, goes before. */
	CHECK(vgpu_order_first(&b, BASE + 1, BASE + 10));
	CHECK(!vgpu_order_first(&b, BASE + 2, BASE + 11));
	vgpu_order_leave(&b, BASE + 2); /* not its to give */
	CHECK(!vgpu_order_first(&b, BASE + 9, BASE + 12));
	vgpu_order_leave(&b, BASE + 1);
	CHECK(vgpu_order_first(&b, BASE + 9, BASE + 13));
	CHECK(vgpu_order_first(&b, BASE + 2, BASE + 14));
}

static void test_nobody_waits_for_the_dead(void)
{
	struct vgpu_budget b = {0};

	CHECK(vgpu_order_first(&b, BASE, BASE));
	CHECK(!vgpu_order_first(&b, BASE + 1, BASE + 50 * MS));
	CHECK(vgpu_order_first(&b, BASE + 1, BASE + 51 * MS));
	/* A stopped process that goes on is the first again. */
	CHECK(vgpu_order_first(&b, BASE, BASE + 52 * MS));
	CHECK(!vgpu_order_first(&b, BASE + 1, BASE + 53 * MS));
}

/* Two that want work of 50 ms at a tenth of the card, whoever looks first each time. */
static void test_two_alternate(void)
{
	struct vgpu_budget b = {0};
	uint64_t now = BASE, since[2] = {BASE, BASE + 1};
	unsigned had[2] = {0}, row = 0, longest = 0, last = 2;

	for (unsigned look = 0; look < 10000; look++, now += MS / 2) {
		bool eager = (look / 7) % 3 == 0;

		vgpu_budget_refill(&b, now, 10, 5 * MS);
		for (unsigned i = 0; i < 2; i++) {
			unsigned who = eager ? 1 - i : i;

			if (!vgpu_order_first(&b, since[who], now) || b.balance_ns <= 0)
				continue;
			b.balance_ns -= 50 * MS;
			vgpu_order_leave(&b, since[who]);
			since[who] = now + who;
			had[who]++;
			row = who == last ? row + 1 : 1;
			longest = row > longest ? row : longest;
			last = who;
		}
	}
	CHECK_EQ(longest, 1);
	CHECK(had[0] + had[1] >= 10 && had[0] - had[1] + 1 <= 2);
}

#define THREADS 4
#define TURNS 20000
static struct vgpu_budget shared;
static uint64_t logical;

/* Under any interleaving everybody gets through: nobody's claim outlives it. */
static void *contender(void *arg)
{
	(void)arg;
	for (unsigned n = 0; n < TURNS; n++) {
		uint64_t since = __atomic_add_fetch(&logical, 1, __ATOMIC_SEQ_CST);

		/* A clock that stands still: nobody gets stale. */
		while (!vgpu_order_first(&shared, since, MS))
			sched_yield();
		vgpu_order_leave(&shared, since);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t t[THREADS];

	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, contender, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	CHECK_EQ(logical, THREADS * TURNS);
	CHECK_EQ(shared.first_since_ns, 0);
}

int main(void)
{
	test_longest_waiting_is_first();
	test_nobody_waits_for_the_dead();
	test_two_alternate();
	test_threads();
	return done("order");
}
