/* SPDX-License-Identifier: Apache-2.0 */
/* streams_test.c - what two streams of a program cost that take turns on the card, where the work
 * of several jobs runs side by side. */
#include "../../libvgpu/compute/beside.c"
#include "../../libvgpu/compute/charge.c"
#include "../../libvgpu/compute/own_time.c"
#include "../../libvgpu/compute/streams.c"

#include "check.h"

struct vgpu_state vgpu_state;
static struct vgpu_cache_header header;
static struct vgpu_slot slot;

/* An event is the time at which it was passed. */
bool vgpu_event_between(double *ns, CUevent start, CUevent end)
{
	*ns = (double)((uintptr_t)end - (uintptr_t)start);
	return true;
}

#define KERNEL_NS 80000.0
#define LAUNCHES 5
#define BATCHES 8

/* A batch of a stream that began then, launched as a whole before the card came to it. */
static double one(struct gate *g, struct vgpu_cost *cost, double span, double busy, double held,
		  uint64_t began_ns, uint64_t now)
{
	struct vgpu_stream_batch b = {.asked_ns = began_ns,
				      .opened_ns = began_ns,
				      .own_ns = g->own_ns + began_ns - g->own_at_ns,
				      .divided_ns = g->divided_ns - (now - began_ns),
				      .launches = LAUNCHES,
				      .solid = true,
				      .nfuncs = 1,
				      .func[0] = {cost, LAUNCHES}};

	return (double)vgpu_batch_charge(g, &b, span, busy, 0, held, now);
}

/* Batches of two streams, each longer times as long on its way as its launches take. All of the first
 * stream's are seen before those of the second, and have covered their time, but for the very last
 * kernel. Returns what they are charged, in times of what their launches cost. */
static double turns(struct gate *g, struct vgpu_cost *cost, double longer, uint64_t *at)
{
	double span = longer * LAUNCHES * KERNEL_NS, charged = 0;
	uint64_t began = *at, now = began + (uint64_t)(BATCHES * span + KERNEL_NS);

	g->several_ns = *at = now;
	vgpu_gate_beside(g, now);
	for (int i = 0; i < BATCHES; i++)
		charged += one(g, cost, span, span, 0, began + (uint64_t)(i * span), now);
	for (int i = 0; i < BATCHES; i++)
		charged += one(g, cost, span, i == BATCHES - 1 ? KERNEL_NS : 0, 0,
			       began + (uint64_t)(KERNEL_NS + i * span), now);
	vgpu_streams_reaped(g);
	return charged / (2 * BATCHES * LAUNCHES * KERNEL_NS);
}

/* A batch on its lane, and what has completed of that: its end is seen, or another stream's. */
static void begins(struct lane *l, unsigned launches, uint64_t began_ns)
{
	l->ring[0] = (struct vgpu_stream_batch){.asked_ns = began_ns,
						.opened_ns = began_ns,
						.start = (CUevent)began_ns,
						.launches = launches,
						.solid = true,
						.nfuncs = 1,
						.func[0] = {vgpu_cost_of(1), launches}};
	l->closed = 1;
}

static void ends(struct gate *g, struct lane *l, uint64_t now)
{
	struct vgpu_stream_batch *b = &l->ring[0];
	double zero = (double)(uintptr_t)l->context->anchor, began = (double)b->opened_ns - zero;
	double busy = vgpu_cover_add(&l->context->cover, began, (double)now - zero);

	g->several_ns = now;
	b->own_ns = g->own_ns + b->opened_ns - g->own_at_ns;
	vgpu_gate_beside(g, now);
	b->divided_ns = g->divided_ns - (now - b->opened_ns);
	vgpu_batch_charge(g, b, (double)(now - b->opened_ns), busy, 0, 0, now);
	l->closed = 0;
	vgpu_streams_reaped(g);
}

/* The schedule from now on: so many other jobs are on the card. */
static void company(struct gate *g, uint32_t others, uint64_t now)
{
	const struct vgpu_schedule s = {.others = others,
					.weight_ppm = 1000000,
					.least_ppm = 1000000,
					.cores = 50};

	vgpu_gate_follow(g, &s, now);
}

/* A moment without company, in which two streams take turns. Last is a long batch of the one. That of
 * the other, which was on its way meanwhile, is not seen before others are on the card again. */
static void moment(struct gate *g, uint64_t *at)
{
	struct lane *a = &g->lane[0], *b = &g->lane[1];
	const uint64_t kernel = (uint64_t)KERNEL_NS;
	uint64_t now = *at;

	company(g, 0, now);
	begins(a, 1, now);
	begins(b, 1, now);
	for (int i = 0; i < BATCHES; i++) {
		ends(g, a, now += kernel);
		begins(a, i < BATCHES - 1 ? 1 : 4 * BATCHES, now);
		ends(g, b, now += kernel);
		begins(b, i < BATCHES - 1 ? 1 : 4 * BATCHES, now);
	}
	ends(g, a, now += (4 * BATCHES * 2 - 1) * kernel);
	company(g, 1, now += kernel / 2);
	ends(g, b, now += kernel);
	*at = now + 1;
}

static void test_moments(void)
{
	static struct gate g = {.concurrent = true, .lanes = 2};
	struct vgpu_cost_part part = {vgpu_cost_of(1), 1};
	uint64_t now = 1000000000u;

	g.divided_ns = g.divided_at_ns = g.own_at_ns = now;
	g.context[0].anchor = (CUevent)now;
	g.context[0].anchored = true;
	g.lane[0].context = g.lane[1].context = &g.context[0];
	vgpu_costs_learn(&part, 1, 0, KERNEL_NS, KERNEL_NS);
	for (int i = 0; i < 4; i++) {
		moment(&g, &now);
		CHECK(part.cost->est_ns > 0.97 * KERNEL_NS && part.cost->est_ns < 1.05 * KERNEL_NS);
	}
}

int main(void)
{
	struct gate g = {.concurrent = true};
	struct vgpu_cost *cost = vgpu_cost_of(1);
	struct vgpu_cost_part part = {cost, 1};
	uint64_t now = 1000000000u;
	double charged = 0;
	uint32_t learned;

	vgpu_state.cache = (struct vgpu_cache){.header = &header, .slots = &slot};
	vgpu_state.slot = &slot;
	g.divided_ns = g.divided_at_ns = g.own_at_ns = now;

	/* Without company a stream's batch takes the other's time, too: no launch costs that. */
	company(&g, 0, now);
	vgpu_costs_learn(&part, 1, 0, 2 * KERNEL_NS, 2 * KERNEL_NS);
	for (int i = 0; i < 100; i++)
		turns(&g, cost, 2, &now);
	CHECK(cost->est_ns > 0.95 * KERNEL_NS && cost->est_ns < 1.1 * KERNEL_NS);

	/* One that the other was held in may have had all of its time. */
	learned = cost->est_ns;
	g.several_ns = now;
	one(&g, cost, LAUNCHES * KERNEL_NS, LAUNCHES * KERNEL_NS, KERNEL_NS, now,
	    now + (uint64_t)(LAUNCHES * KERNEL_NS));
	CHECK(cost->est_ns > 0.95 * KERNEL_NS && cost->est_ns <= learned);

	/* In company both are charged what they cost, although the first has covered their time. */
	company(&g, 1, now++);
	for (int i = 0; i < 100; i++)
		charged += turns(&g, cost, 4, &now) / 100;
	CHECK(charged > 0.95 && charged < 1.1);

	/* And no more than the time that they took together, whatever is known of them. */
	vgpu_costs_scale(&part, 1, 10);
	charged = 0;
	for (int i = 0; i < 100; i++)
		charged += turns(&g, cost, 4, &now) / 100;
	CHECK(charged < 2.1);

	vgpu_cost_forget(1);
	test_moments();
	return done("streams_test");
}
