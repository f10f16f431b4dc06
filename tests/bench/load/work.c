// SPDX-License-Identifier: Apache-2.0
/* work.c - the shapes of load. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BURSTS 100000
#define BURST_MIN_NS 15000000ull /* from the start of a burst to the next */
#define BURST_MAX_NS 35000000ull
#define POLL_NS 50000
#define EAGER_LAUNCH_NS 36000
#define EAGER_STEP_NS 500000

static const struct shape shapes[] = {
	{"20us", SPIN, 1, 1, 400},   {"200us", SPIN, 10, 1, 40},
	{"1ms", SPIN, 50, 1, 8},     {"5ms", SPIN, 250, 1, 2},
	{"20ms", SPIN, 1000, 1, 2},  {"50ms", SPIN, 2500, 1, 2},
	{"graph", GRAPH, 1, 100, 4}, {"persistent", PERSISTENT, 1u << 30, 1, 1},
	{"burst", BURST, 5, 20, 1},  {"product", PRODUCT, 1, 1, 12},
	{"steps", STEPS, 10, 65, 1}, {"eager", EAGER, 2, 300, 1},
	{"rhythm", RHYTHM, 1, 1, 1},
};

const struct shape *shape_named(const char *name)
{
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
		if (strcmp(shapes[i].name, name) == 0)
			return &shapes[i];
	return NULL;
}

static CUgraphExec capture(struct card *c, const struct shape *s)
{
	CUgraph graph;
	CUgraphExec exec;

	must(cu.StreamBeginCapture(c->stream, 1), "cuStreamBeginCapture");
	for (unsigned i = 0; i < s->per_launch; i++)
		card_launch(c, s);
	must(cu.StreamEndCapture(c->stream, &graph), "cuStreamEndCapture");
	must(cu.GraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
	must(cu.GraphDestroy(graph), "cuGraphDestroy");
	return exec;
}

static void print_bursts(const uint64_t *begun, const uint64_t *took, unsigned n)
{
	printf(",\"bursts\":[");
	for (unsigned i = 0; i < n; i++)
		printf("%s[%llu,%.4f]", i ? "," : "", (unsigned long long)begun[i],
		       (double)took[i] / 1e6);
	printf("]");
}

/* Requests of a service: some kernels, wait for them, and rest. */
static void burst(struct card *c, const struct shape *s, uint64_t start, uint64_t end)
{
	uint64_t *begun = calloc(MAX_BURSTS, sizeof(*begun));
	uint64_t *took = calloc(MAX_BURSTS, sizeof(*took));
	uint64_t next = start;
	uint32_t x = 2463534242u; /* the same pauses in every run */
	unsigned n = 0;

	if (!begun || !took)
		die("burst", "out of host memory");
	while (now_ns() < end && n < MAX_BURSTS) {
		begun[n] = now_ns();
		for (unsigned i = 0; i < s->per_launch; i++)
			card_launch(c, s);
		must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
		took[n] = now_ns() - begun[n];
		n++;
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		next += BURST_MIN_NS + (BURST_MAX_NS - BURST_MIN_NS) * (x % 1024) / 1024;
		if (next < now_ns())
			next = now_ns();
		sleep_until(next);
	}
	print_bursts(begun, took, n);
	free(begun);
	free(took);
}

/* Returns when the next period of work begins; 0: work now. */
static uint64_t resting(const struct options *o, uint64_t start, uint64_t now)
{
	uint64_t on = o->on_ms * 1000000ull, period = on + o->off_ms * 1000000ull, at;

	if (!o->off_ms)
		return 0;
	at = (now - start) % period;
	return at < on ? 0 : now - at + period;
}

void compute(uint64_t ns)
{
	uint64_t end = now_ns() + ns;

	while (now_ns() < end)
		;
}

/* Steps of a training that is not compiled: the host computes for each kernel about as
 * long as it runs, and for a while between two steps, whose result it waits for. */
static void train(struct card *c, const struct shape *s, uint64_t end)
{
	while (now_ns() < end) {
		for (unsigned i = 0; i < s->per_launch; i++) {
			compute(EAGER_LAUNCH_NS);
			card_launch(c, s);
		}
		must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
		compute(EAGER_STEP_NS);
	}
}

static void saturate(struct card *c, const struct shape *s, const struct options *o, uint64_t start,
		     uint64_t end)
{
	const struct timespec poll = {0, POLL_NS};
	CUgraphExec graph = s->kind == GRAPH || s->kind == STEPS ? capture(c, s) : NULL;
	uint64_t sent = c->progress->kernels, now;

	while ((now = now_ns()) < end) {
		uint64_t wake = resting(o, start, now);

		if (wake) {
			sleep_until(wake < end ? wake : end);
			continue;
		}
		/* how much is in flight is read from the card, not from the driver */
		if (sent - c->progress->kernels >= (uint64_t)s->depth * s->per_launch) {
			nanosleep(&poll, NULL);
			continue;
		}
		if (graph)
			must(cu.GraphLaunch(graph, c->stream), "cuGraphLaunch");
		else
			card_launch(c, s);
		sent += s->per_launch;
		if (s->kind == STEPS)
			must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
	}
	c->progress->stop = 1;
	must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
	if (graph)
		must(cu.GraphExecDestroy(graph), "cuGraphExecDestroy");
}

void work(struct card *c, const struct shape *s, const struct options *o, uint64_t start,
	  uint64_t end)
{
	c->progress->stop = 0;
	sleep_until(start);
	printf("{\"shape\":\"%s\",\"sms\":%d", s->name, c->sms);
	if (s->kind == BURST)
		burst(c, s, start, end);
	else if (s->kind == EAGER)
		train(c, s, end);
	else
		saturate(c, s, o, start, end);
	printf(",\"kernels\":%u", c->progress->kernels);
}
