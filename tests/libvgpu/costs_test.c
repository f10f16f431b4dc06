/* SPDX-License-Identifier: Apache-2.0 */
/* costs_test.c - what functions cost is learned from batches of many, as a training step launches
 * them: some batches are measured exactly, of most only bounds are known. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "../../libvgpu/compute/costs.h"
#include "check.h"

#define FUNCTIONS 40
#define PARTS 16
#define STEP 300 /* launches, always in this order */
#define GAP_NS 1400

static double truth[FUNCTIONS]; /* with the card's gap after it */
static unsigned order[STEP];
static uint64_t random_state = 42;

static double uniform(void)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (double)(random_state >> 11) / (double)(1ull << 53);
}

static struct vgpu_cost *cost(unsigned f)
{
	return vgpu_cost_of(0x1000 + f);
}

static void make_step(void)
{
	for (unsigned f = 0; f < FUNCTIONS; f++) {
		double us = 1;

		for (double left = uniform() * 7; left > 0; left--) /* 1 to 128 us */
			us *= left > 1 ? 2 : 1 + left;
		truth[f] = us * 1000 + GAP_NS;
	}
	for (unsigned i = 0; i < STEP; i++)
		order[i] = (unsigned)(uniform() * FUNCTIONS);
}

/* The next launches of the step, until they are half a millisecond by truth. */
static unsigned batch(struct vgpu_cost_part *parts, double *took, unsigned *launches)
{
	static unsigned at;
	unsigned n = 0;

	*took = 0;
	for (*launches = 0; *took < 500000; ++*launches, at++) {
		unsigned f = order[at % STEP], i = 0;

		while (i < n && parts[i].cost != cost(f))
			i++;
		if (i == n && n == PARTS)
			break;
		if (i == n)
			parts[n++] = (struct vgpu_cost_part){cost(f), 0};
		parts[i].launches++;
		*took += truth[f];
	}
	return n;
}

/* Part by which what batches are taken for is too much. */
static double learn(unsigned batches, double exact)
{
	double told = 0, took_all = 0;

	for (unsigned k = 0; k < batches; k++) {
		struct vgpu_cost_part parts[PARTS];
		double took, idle, host;
		unsigned launches, n = batch(parts, &took, &launches);

		host = 5000.0 * launches;
		idle = uniform() * (host < took ? host : took);
		told += vgpu_costs_sum(parts, n, 0);
		took_all += took;
		took *= 0.99 + 0.02 * uniform();
		if (uniform() < exact)
			vgpu_costs_learn(parts, n, 0, took, took);
		else
			vgpu_costs_learn(parts, n, 0, took + idle > host ? took + idle - host : 0,
					 took + idle);
	}
	return told / took_all - 1;
}

static void test_training_step(void)
{
	double off;

	make_step();
	for (unsigned f = 0; f < FUNCTIONS; f++) {
		struct vgpu_cost_part part = {cost(f), 1};
		/* The driver loaded the code meanwhile. */
		double ns = f % 4 ? truth[f] + 3000 : 50 * truth[f];

		vgpu_costs_learn(&part, 1, 0, ns, ns);
		CHECK_EQ(cost(f)->est_ns, (uint32_t)ns);
	}
	learn(300, 0.3);
	off = learn(1000, 0.3);
	CHECK(off > -0.01 && off < 0.01);
	off = learn(1000, 0.1);
	CHECK(off > -0.02 && off < 0.02);
	/* Bounds alone leave what is known as it is. */
	off = learn(3000, 0);
	CHECK(off > -0.02 && off < 0.03);
}

static void test_work_that_becomes_longer(void)
{
	for (unsigned f = 0; f < FUNCTIONS; f++)
		truth[f] *= f % 2 ? 3 : 0.5;
	learn(200, 0.3);
	double off = learn(500, 0.3);
	CHECK(off > -0.02 && off < 0.02);
}

static void test_one_function(void)
{
	struct vgpu_cost_part part = {vgpu_cost_of(7), 1};

	vgpu_costs_learn(&part, 1, 0, 100000, 100000);
	for (int i = 0; i < 40; i++)
		vgpu_costs_learn(&part, 1, 0, 20000, 20000);
	CHECK(part.cost->est_ns > 19000 && part.cost->est_ns < 21000);
	for (int i = 0; i < 40; i++)
		vgpu_costs_learn(&part, 1, 0, 10000000, 10000000);
	CHECK(part.cost->est_ns > 9500000 && part.cost->est_ns < 10500000);
}

static void test_failed_and_unknown_launches(void)
{
	struct vgpu_cost_part part[2] = {{vgpu_cost_of(8), 0}, {vgpu_cost_of(9), 2}};

	vgpu_costs_learn(part, 1, 0, 100000, 100000); /* it failed: nothing is known */
	CHECK_EQ(part[0].cost->samples, 0);
	vgpu_costs_learn(part + 1, 1, 0, 100000, 100000);
	CHECK_EQ(part[1].cost->est_ns, 50000);
	vgpu_costs_learn(part, 2, 0, 300000, 300000);
	CHECK_EQ(part[1].cost->est_ns, 50000);
	part[0].cost->samples = 1;
	part[0].cost->est_ns = 1000;
	vgpu_costs_learn(part, 2, 0, 120000, 120000);
	CHECK_EQ(part[0].cost->est_ns, 1000);
	CHECK_EQ(part[1].cost->est_ns, 55000);
}

/* More keys than entries: what is well known stays, and what comes last is learned too. */
static void test_more_keys_than_entries(void)
{
	struct vgpu_cost_part part = {0};
	unsigned kept = 0;

	for (uint64_t key = 1; key <= 200; key++) {
		part = (struct vgpu_cost_part){vgpu_cost_of(key << 40), 1};
		for (int i = 0; i < 50; i++)
			vgpu_costs_learn(&part, 1, 0, 20000, 20000);
	}
	for (uint64_t key = 1; key <= 20000; key++) {
		part = (struct vgpu_cost_part){vgpu_cost_of(0x5000000 + key), 1};
		CHECK_EQ(part.cost->key, 0x5000000 + key);
		CHECK_EQ(part.cost->samples, 0);
		vgpu_costs_learn(&part, 1, 0, 5000000, 5000000);
		CHECK_EQ(part.cost->est_ns, 5000000);
	}
	for (uint64_t key = 1; key <= 200; key++)
		kept += vgpu_cost_of(key << 40)->est_ns == 20000;
	CHECK(kept > 190);
	vgpu_cost_forget(0x5000000 + 20000);
	CHECK_EQ(part.cost->samples, 0);
}

/* Launches of one key differ in length, and a busy host seldom leaves more than an upper bound. */
static void test_launches_that_differ(void)
{
	static const double us[2][3] = {{100, 100, 200}, {25, 100, 200}};
	struct vgpu_cost_part part[2] = {{vgpu_cost_of(30), 1}, {vgpu_cost_of(31), 1}};
	uint32_t least[2] = {UINT32_MAX, UINT32_MAX};

	for (unsigned i = 0; i < 2; i++)
		vgpu_costs_learn(&part[i], 1, 0, us[i][2] * 1e3, us[i][2] * 1e3);
	for (unsigned k = 0; k < 5000; k++) {
		double took = 0;

		for (unsigned i = 0; i < 2; i++) {
			part[i].launches = (uint32_t)(uniform() * 4);
			for (unsigned n = 0; n < part[i].launches; n++)
				took += us[i][(unsigned)(uniform() * 3)] * 1e3;
		}
		if (took > 0)
			vgpu_costs_learn(part, 2, 0, uniform() < 0.7 ? 0 : took, took);
		for (unsigned i = 0; i < 2; i++)
			least[i] =
				part[i].cost->est_ns < least[i] ? part[i].cost->est_ns : least[i];
	}
	CHECK(least[0] > 25000);
	CHECK(least[1] > 8000);
}

static void test_longest_of_late(void)
{
	struct vgpu_cost *c = vgpu_cost_of(33);

	/* Little is known: 0.2 ms. */
	CHECK_EQ(vgpu_cost_more(c, 20000), 180000);
	c->samples = FEW_SAMPLES - 1;
	CHECK_EQ(vgpu_cost_more(c, 20000), 180000);
	CHECK_EQ(vgpu_cost_more(c, 300000), 0);
	c->samples = FEW_SAMPLES;
	CHECK_EQ(vgpu_cost_more(c, 20000), 0);
	vgpu_cost_took(c, 1, 800000);
	CHECK_EQ(vgpu_cost_more(c, 20000), 780000);
	vgpu_cost_took(c, 4, 80000);
	CHECK(vgpu_cost_more(c, 20000) > 770000);
	for (int i = 0; i < 2000; i++)
		vgpu_cost_took(c, 1, 20000);
	CHECK_EQ(vgpu_cost_more(c, 20000), 0);
	/* With slices of 2 ms of a program that gresd does not know. */
	vgpu_cost_took(c, 1, 2020000);
	vgpu_cost_took(c, 3, 4060000);
	vgpu_cost_took(c, 10, 20000000);
	CHECK_EQ(vgpu_cost_more(c, 20000), 0);
	/* No slices come to so much. */
	vgpu_cost_took(c, 70, 110000000);
	CHECK_EQ(vgpu_cost_more(c, 20000), 980000);
}

int main(void)
{
	test_training_step();
	test_work_that_becomes_longer();
	test_one_function();
	test_more_keys_than_entries();
	test_failed_and_unknown_launches();
	test_launches_that_differ();
	test_longest_of_late();
	return done("costs");
}
