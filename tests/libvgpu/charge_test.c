/* SPDX-License-Identifier: Apache-2.0 */
/* charge_test.c - the charge of batches: alone, with parallel streams, and next to other jobs. */
#include "../../libvgpu/compute/beside.c"
#include "../../libvgpu/compute/charge.c"
#include "../../libvgpu/compute/own_time.c"

#include "check.h"

struct vgpu_state vgpu_state;
static struct vgpu_cache_header header;
static struct vgpu_slot slot;
static struct vgpu_grant grant;
static uint64_t now = 1000000000u;

#define KERNEL_NS 80000u
#define LAUNCHES 5
#define BATCH_OF_NS (LAUNCHES * KERNEL_NS)

/* Sets the schedule: the number of other jobs on the card, and this job's part of it. */
static void company(struct gate *g, uint32_t others, uint32_t weight_ppm)
{
	const struct vgpu_schedule s = {.others = others,
					.weight_ppm = weight_ppm,
					.least_ppm = weight_ppm,
					.cores = 50};

	vgpu_gate_follow(g, &s, now);
}

/* Charges a batch that takes ns from now on. No other stream was charged for busy of these. */
static uint64_t charge_all(struct gate *g, struct vgpu_cost *cost, uint64_t ns, uint64_t busy,
			   double slack, uint64_t held)
{
	struct vgpu_stream_batch b = {.asked_ns = now,
				      .opened_ns = now,
				      .own_ns = vgpu_gate_own(g, now),
				      .launches = LAUNCHES,
				      .solid = true,
				      .nfuncs = 1,
				      .func[0] = {cost, LAUNCHES}};
	struct lane *l = &g->lane[0];

	g->lanes = 1;
	l->open = true;
	l->ring[0].asked_ns = now;
	now += ns;
	ns = vgpu_batch_charge(g, &b, (double)ns, (double)busy, slack, (double)held, now);
	l->open = false;
	return ns;
}

static uint64_t charge(struct gate *g, struct vgpu_cost *cost, uint64_t ns, uint64_t busy,
		       uint64_t held)
{
	return charge_all(g, cost, ns, busy, 0, held);
}

static uint64_t charge_gaps(struct gate *g, struct vgpu_cost *cost, uint64_t busy, double slack)
{
	return charge_all(g, cost, BATCH_OF_NS, busy, slack, 0);
}

static bool near(uint64_t ns, uint64_t want)
{
	return ns > want - want / 50 && ns < want + want / 50;
}

static void test_alone(void)
{
	static struct gate g;
	struct vgpu_cost *c = vgpu_cost_of(1);

	CHECK_EQ(charge(&g, c, BATCH_OF_NS, BATCH_OF_NS, 0), BATCH_OF_NS);
	CHECK_EQ(c->est_ns, KERNEL_NS);
	/* An estimate never lowers a charge. */
	CHECK_EQ(charge(&g, c, 10 * BATCH_OF_NS, 10 * BATCH_OF_NS, 0), 10 * BATCH_OF_NS);
	/* A batch that may have waited for a throttled launch is charged. Its time is not learned. */
	c->est_ns = KERNEL_NS;
	CHECK_EQ(charge(&g, c, 3 * BATCH_OF_NS, 3 * BATCH_OF_NS, 2 * BATCH_OF_NS), 3 * BATCH_OF_NS);
	CHECK_EQ(c->est_ns, KERNEL_NS);
	/* Time counts once, however many processes work. */
	header.counted_ns[0] = now + BATCH_OF_NS / 2;
	CHECK_EQ(charge(&g, c, BATCH_OF_NS, BATCH_OF_NS, 0), BATCH_OF_NS / 2);
}

/* The batches of two streams take twice the time of their launches, and cover it together. */
static void test_streams(void)
{
	static struct gate g;
	struct vgpu_cost *c = vgpu_cost_of(2);
	uint64_t sum = 0;

	for (int i = 0; i < 200; i++) {
		uint64_t began = now;

		g.several_ns = now + 2 * BATCH_OF_NS;
		sum += charge(&g, c, 2 * BATCH_OF_NS, 2 * BATCH_OF_NS, 0);
		now = began;
		sum += charge(&g, c, 2 * BATCH_OF_NS, 0, 0);
	}
	CHECK(near(sum, 200ull * 2 * BATCH_OF_NS));
	CHECK(near(c->est_ns, KERNEL_NS));
}

static void test_next_to_neighbors(void)
{
	static struct gate g;
	struct vgpu_cost *c = vgpu_cost_of(3);

	company(&g, 1, 300000);
	CHECK(near(charge(&g, c, BATCH_OF_NS * 10 / 3, BATCH_OF_NS * 10 / 3, 0), BATCH_OF_NS));
}

/* A batch with gaps: the card may have waited for the host for 80 % of the time. gresd publishes the idle
 * part of the gaps. */
static void test_gaps(void)
{
	static struct gate g;
	struct vgpu_cost *c = vgpu_cost_of(5);
	double gaps = 0.8 * BATCH_OF_NS;
	uint64_t sum = header.demand[0].gaps_ns;

	c->est_ns = KERNEL_NS / 4;
	c->samples = 100;
	CHECK_EQ(charge_gaps(&g, c, BATCH_OF_NS, gaps), BATCH_OF_NS);
	CHECK_EQ(header.demand[0].gaps_ns, sum);
	/* Not measured yet: the estimate of the launches bounds the work. */
	g.gaps_measured = true;
	c->est_ns = KERNEL_NS / 4;
	CHECK_EQ(charge_gaps(&g, c, BATCH_OF_NS, gaps), BATCH_OF_NS / 4);
	CHECK_EQ(header.demand[0].gaps_ns, sum + (uint64_t)gaps);
	CHECK_EQ(c->est_ns, KERNEL_NS / 4);
	c->est_ns = KERNEL_NS / 7;
	CHECK_EQ(charge_gaps(&g, c, BATCH_OF_NS, gaps), BATCH_OF_NS / 5);
	c->varies = 1;
	CHECK_EQ(charge_gaps(&g, c, BATCH_OF_NS, gaps), BATCH_OF_NS);
	g.gaps_idle = 0.75;
	c->est_ns = KERNEL_NS / 4;
	CHECK(near(charge_gaps(&g, c, BATCH_OF_NS, gaps), BATCH_OF_NS * 4 / 10));
	CHECK(c->est_ns > KERNEL_NS / 4 && c->est_ns < KERNEL_NS * 4 / 10);
	/* Half of the time is another stream's, and so is half of the gaps. */
	sum = header.demand[0].gaps_ns;
	CHECK(near(charge_gaps(&g, c, BATCH_OF_NS / 2, gaps), BATCH_OF_NS * 2 / 10));
	CHECK_EQ(header.demand[0].gaps_ns, sum + (uint64_t)(gaps / 2));
}

/* The work of jobs runs side by side: costs are learned without company, and charged with it. */
static void test_side_by_side(void)
{
	static struct gate g = {.concurrent = true};
	struct vgpu_cost *c = vgpu_cost_of(4);

	company(&g, 0, 1000000);
	now++;
	CHECK_EQ(charge(&g, c, BATCH_OF_NS, BATCH_OF_NS, 0), BATCH_OF_NS);
	company(&g, 1, 1000000);
	now++;
	CHECK(near(charge(&g, c, 2 * BATCH_OF_NS, 2 * BATCH_OF_NS, 0), BATCH_OF_NS));
	CHECK_EQ(c->est_ns, KERNEL_NS);
	/* Never more than the time that it took. */
	c->est_ns = 10 * KERNEL_NS;
	CHECK_EQ(charge(&g, c, 2 * BATCH_OF_NS, 2 * BATCH_OF_NS, 0), 2 * BATCH_OF_NS);
}

int main(void)
{
	vgpu_state.cache = (struct vgpu_cache){.header = &header, .slots = &slot};
	vgpu_state.slot = &slot;
	vgpu_state.grant = &grant;
	test_alone();
	test_streams();
	test_next_to_neighbors();
	test_gaps();
	test_side_by_side();
	return done("charge_test");
}
