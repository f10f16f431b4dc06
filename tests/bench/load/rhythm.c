// SPDX-License-Identifier: Apache-2.0
/*
 * rhythm.c - steps of kernels as real programs send them: the host computes between
 * launches, and waits for the card at each step, at some, or never.
 */
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_NS 50000
#define NO_TIMING 2 /* of an event */

typedef CUresult (*copy_call)(CUdeviceptr, const void *, size_t, CUstream);

struct player {
	struct card *card;
	struct rhythm r;
	CUgraphExec graph;
	CUevent *events;       /* of each stream, for each batch in flight */
	unsigned batches;      /* recorded so far */
	uint32_t sent, chance; /* kernels; the state of what is random */
	uint64_t steps;        /* of this run */
	copy_call copy;
	void *host[2];
	CUdeviceptr data[2];
};

static CUstream stream_of(const struct player *p, unsigned i)
{
	return i ? p->card->second : p->card->stream;
}

static void open_copies(struct player *p)
{
	void *f = dlsym(RTLD_DEFAULT, "cuMemcpyHtoDAsync_v2");

	if (!f)
		die("cuMemcpyHtoDAsync_v2", "not found");
	memcpy(&p->copy, &f, sizeof(p->copy));
	for (unsigned i = 0; i < p->r.streams; i++) {
		must(cu.MemHostAlloc(&p->host[i], p->r.copy, 0), "cuMemHostAlloc");
		memset(p->host[i], 1, p->r.copy);
		must(cu.MemAlloc(&p->data[i], p->r.copy), "cuMemAlloc");
	}
}

static void wait_all(const struct player *p)
{
	for (unsigned i = 0; i < p->r.streams; i++)
		must(cu.StreamSynchronize(stream_of(p, i)), "cuStreamSynchronize");
}

static void launches(struct player *p)
{
	for (unsigned i = 0; i < p->r.kernels; i++) {
		if (p->r.launch > 0 && !p->r.graph)
			compute((uint64_t)(p->r.launch * 1000));
		card_beat(p->card, p->r.kernel, i % p->r.streams);
	}
}

static void step(struct player *p)
{
	for (unsigned i = 0; i < p->r.streams && p->r.copy; i++)
		must(p->copy(p->data[i], p->host[i], p->r.copy, stream_of(p, i)),
		     "cuMemcpyHtoDAsync");
	if (p->r.graph) {
		compute((uint64_t)(p->r.launch * 1000));
		must(cu.GraphLaunch(p->graph, p->card->stream), "cuGraphLaunch");
	} else {
		launches(p);
	}
	p->sent += p->r.kernels;
	p->steps++;
}

static void capture(struct player *p)
{
	CUgraph graph;

	must(cu.StreamBeginCapture(p->card->stream, 1), "cuStreamBeginCapture");
	launches(p);
	must(cu.StreamEndCapture(p->card->stream, &graph), "cuStreamEndCapture");
	must(cu.GraphInstantiateWithFlags(&p->graph, graph, 0), "cuGraphInstantiateWithFlags");
	must(cu.GraphDestroy(graph), "cuGraphDestroy");
}

struct player *rhythm_open(struct card *c, const struct rhythm *r)
{
	struct player *p = calloc(1, sizeof(*p));
	unsigned events = r->ahead * r->streams;

	if (!p || !(p->events = calloc(events, sizeof(*p->events))))
		die("rhythm", "out of host memory");
	p->card = c;
	p->r = *r;
	if (r->streams > 1)
		must(cu.StreamCreate(&c->second, 1), "cuStreamCreate");
	for (unsigned i = 0; i < events; i++)
		must(cu.EventCreate(&p->events[i], NO_TIMING), "cuEventCreate");
	if (r->copy)
		open_copies(p);
	if (r->graph)
		capture(p);
	step(p);
	wait_all(p);
	return p;
}

/* M batches in flight: waits for the one M - 1 before this one. */
static void wait_behind(struct player *p)
{
	const struct rhythm *r = &p->r;
	unsigned oldest = (p->batches + 1) % r->ahead;

	for (unsigned i = 0; i < r->streams; i++)
		must(cu.EventRecord(p->events[p->batches % r->ahead * r->streams + i],
				    stream_of(p, i)),
		     "cuEventRecord");
	p->batches++;
	if (p->batches < r->ahead)
		return;
	for (unsigned i = 0; i < r->streams; i++)
		must(cu.EventSynchronize(p->events[oldest * r->streams + i]), "cuEventSynchronize");
}

/* Waits as the rhythm says, and without waits until few enough steps are in flight: that
 * is read from the card, not from the driver. */
static void keep_back(struct player *p, uint64_t end)
{
	const struct timespec poll = {0, POLL_NS};

	if (p->r.wait) {
		if (p->steps % p->r.wait)
			return;
		if (p->r.ahead == 1)
			wait_all(p);
		else
			wait_behind(p);
		return;
	}
	while (p->sent - card_kernels(p->card) >= p->r.ahead * p->r.kernels && now_ns() < end)
		nanosleep(&poll, NULL);
}

/* The data of some steps is late: the same ones in every run. */
static void await_data(struct player *p, uint64_t end)
{
	uint64_t until = now_ns() + (uint64_t)(p->r.late_ms * 1e6);

	if (!p->r.late_every)
		return;
	p->chance ^= p->chance << 13;
	p->chance ^= p->chance >> 17;
	p->chance ^= p->chance << 5;
	if (p->chance % p->r.late_every == 0)
		sleep_until(until < end ? until : end);
}

void rhythm_play(struct player *p, uint64_t start, uint64_t end)
{
	p->chance = 2463534242u;
	p->steps = p->batches = 0;
	sleep_until(start);
	while (now_ns() < end) {
		await_data(p, end);
		step(p);
		keep_back(p, end);
		if (p->r.gap > 0)
			compute((uint64_t)(p->r.gap * 1000));
	}
	wait_all(p);
	printf("{\"shape\":\"rhythm\",\"sms\":%d,\"kernels_per_step\":%u,\"sent\":%llu,\"kernels\":"
	       "%u",
	       p->card->sms, p->r.kernels, (unsigned long long)p->steps, card_kernels(p->card));
}
