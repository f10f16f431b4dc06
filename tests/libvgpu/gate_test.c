/* SPDX-License-Identifier: Apache-2.0 */
/* gate_test.c - schedules that threads take over in any order; launches that pass without a check. */
#include "../../libvgpu/compute/batch.c"
#include "../../libvgpu/compute/gate.c"
#include "../../libvgpu/compute/own_time.c"

#include "check.h"

#define ROUNDS 20000

struct vgpu_state vgpu_state;
__thread bool vgpu_inside;
__thread char vgpu_this_thread;
static struct vgpu_grant grant;
static struct vgpu_slot slot;
static pthread_barrier_t barrier;

static void set(int card, uint32_t seq, uint32_t gate)
{
	struct vgpu_schedule s = {.cores = 20, .seq = seq, .gate = gate};

	vgpu_gate_schedule(card, &s);
}

static uint32_t gate_of(int card, unsigned round)
{
	return (round + (unsigned)card) % 2 ? VGPU_GATE_BUDGET : 0;
}

static void *follow(void *card)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&barrier);
		set((int)(intptr_t)card, 2 + 2 * round, gate_of((int)(intptr_t)card, round));
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

/* One of the two cards is gated at any time. */
static void test_two_threads(void)
{
	unsigned open = 0;
	pthread_t other;

	pthread_barrier_init(&barrier, NULL, 2);
	if (pthread_create(&other, NULL, follow, (void *)(intptr_t)1) != 0)
		return;
	for (unsigned round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&barrier);
		set(0, 2 + 2 * round, gate_of(0, round));
		pthread_barrier_wait(&barrier);
		open += !vgpu_gate_any;
	}
	pthread_join(other, NULL);
	CHECK_EQ(open, 0);
}

static void test_an_older_schedule_changes_nothing(void)
{
	set(0, 100002, VGPU_GATE_BUDGET);
	set(1, 100002, 0);
	set(0, 100000, 0);
	CHECK_EQ(vgpu_gate_any, 1);
	CHECK_EQ(vgpu_gates[0].schedule.gate, VGPU_GATE_BUDGET);
	set(0, 100004, 0);
	CHECK_EQ(vgpu_gate_any, 0);
	/* The same one again: its lease has expired. */
	set(0, 100004, VGPU_GATE_BUDGET);
	CHECK_EQ(vgpu_gate_any, 1);
}

uint64_t vgpu_quantum(const struct gate *g)
{
	(void)g;
	return QUANTUM_NS;
}

bool vgpu_may_be_long(const struct gate *g, const struct vgpu_launch *l)
{
	(void)g;
	return l->more_ns > QUANTUM_NS;
}

/* Launches that differ in length are measured one by one only while the job has no neighbors. With
 * neighbors a check of each launch measures nothing. */
static void test_with_neighbors_launches_that_differ_pass_quickly(void)
{
	static struct gate g = {.schedule = {.gate = VGPU_GATE_BUDGET, .cores = 20},
				.quick_left = 2,
				.lanes = 1,
				.lane[0] = {.open = true}};
	const struct vgpu_budget budget = {.balance_ns = BURST_NS};
	const struct vgpu_launch l = {.samples = FEW_SAMPLES, .est_ns = 5000};
	const struct vgpu_cost same = {0}, differs = {.varies = 1};

	g.last = &g.lane[0];
	CHECK(quick(&g, &budget, NULL, &l, &same) != NULL);
	CHECK(quick(&g, &budget, NULL, &l, &differs) == NULL);
	g.schedule.others = 1;
	CHECK(quick(&g, &budget, NULL, &l, &differs) != NULL);
}

int main(void)
{
	vgpu_state.grant = &grant;
	vgpu_state.slot = &slot;
	vgpu_state.ncards = 2;
	test_two_threads();
	test_an_older_schedule_changes_nothing();
	test_with_neighbors_launches_that_differ_pass_quickly();
	return done("gate_test");
}
