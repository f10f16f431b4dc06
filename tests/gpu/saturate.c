// SPDX-License-Identifier: Apache-2.0
/*
 * saturate.c - keeps a card busy and tells how much work was done.
 *
 * Kernels go in batches of about half a millisecond; an event behind each
 * batch says, in the card's own time, when it was done. Work that was done by
 * the end is divided by what the card does alone in that time: the fraction.
 */
#define _GNU_SOURCE
#include "worker.h"

#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH_NS 500000.0
#define DEPTH_NS 40000000.0 /* enough work in flight for a late host */
#define MAX_INFLIGHT 512
#define WINDOW_MS 100.0
#define MAX_WINDOWS 6000 /* of a run that lasts for hours, only its first part */
#define FIRST_WINDOWS 20 /* are told one by one */
#define MAX_STREAMS 32

struct run {
	struct kernel k;
	const char *launch;
	bool poll;
	unsigned units;
	int batch; /* kernels */
	int depth; /* batches in flight */
	int nstreams;
	CUstream stream[MAX_STREAMS];
	CUgraphExec graph;
	CUevent start, *done;
	double *window; /* kernels finished in each */
	int nwindows;
	double kernels, last_ms, end_ms;
	double late_s;
};

static volatile sig_atomic_t asked; /* by SIGUSR1, what malloc has given out */

static void ask(int sig)
{
	(void)sig;
	asked = 1;
}

static void tell_memory(void)
{
	struct mallinfo2 m = mallinfo2();

	asked = 0;
	printf("{\"cmd\":\"memory\",\"in_use\":%zu,\"from_kernel\":%zu}\n", m.uordblks + m.hblkhd,
	       m.arena + m.hblkhd);
	fflush(stdout);
}

static void launch_one(struct run *r, CUstream s)
{
	uint64_t sink = 0;
	void *params[] = {&r->units, &sink};
	CUlaunchConfig c = {r->k.grid, 1, 1, r->k.block, 1, 1, 0, s, NULL, 0};

	if (strcmp(r->launch, "ex") == 0)
		must(cu.LaunchKernelEx(&c, r->k.fn, params, NULL), "cuLaunchKernelEx");
	else if (strcmp(r->launch, "coop") == 0)
		must(cu.LaunchCooperativeKernel(r->k.fn, r->k.grid, 1, 1, r->k.block, 1, 1, 0, s,
						params),
		     "cuLaunchCooperativeKernel");
	else
		must(cu.LaunchKernel(r->k.fn, r->k.grid, 1, 1, r->k.block, 1, 1, 0, s, params,
				     NULL),
		     "cuLaunchKernel");
}

static void launch_batch(struct run *r, long i)
{
	CUstream s = r->stream[i % r->nstreams];

	if (r->graph) {
		must(cu.GraphLaunch(r->graph, s), "cuGraphLaunch");
	} else {
		for (int n = 0; n < r->batch; n++)
			launch_one(r, s);
	}
	must(cu.EventRecord(r->done[i % r->depth], s), "cuEventRecord");
}

static void make_graph(struct run *r)
{
	CUgraph g;

	must(cu.StreamBeginCapture(r->stream[0], 1), "cuStreamBeginCapture");
	for (int n = 0; n < r->batch; n++)
		launch_one(r, r->stream[0]);
	must(cu.StreamEndCapture(r->stream[0], &g), "cuStreamEndCapture");
	must(cu.GraphInstantiateWithFlags(&r->graph, g, 0), "cuGraphInstantiateWithFlags");
	must(cu.GraphDestroy(g), "cuGraphDestroy");
}

static void wait_for(const struct run *r, CUevent event)
{
	const struct timespec pause = {0, 200000};
	CUresult rc;

	if (!r->poll) {
		must(cu.EventSynchronize(event), "cuEventSynchronize");
		return;
	}
	while ((rc = cu.EventQuery(event)) == CUDA_ERROR_NOT_READY)
		nanosleep(&pause, NULL);
	must(rc, "cuEventQuery");
}

/* Spreads a batch's work over the time since the one before it. */
static void count_batch(struct run *r, long i)
{
	double at, from = r->last_ms, work = r->batch;
	float ms = 0;

	wait_for(r, r->done[i % r->depth]);
	must(cu.EventElapsedTime(&ms, r->start, r->done[i % r->depth]), "cuEventElapsedTime");
	at = ms;
	if (at <= from) /* another stream's batch ended first */
		from = at > 0.001 ? at - 0.001 : 0;
	else
		r->last_ms = at;
	for (int w = (int)(from / WINDOW_MS); w < r->nwindows && w * WINDOW_MS < at; w++) {
		double a = fmax(from, w * WINDOW_MS), b = fmin(at, (w + 1) * WINDOW_MS);

		r->window[w] += work * (b - a) / (at - from);
	}
	if (at <= r->end_ms)
		r->kernels += work;
	else if (from < r->end_ms)
		r->kernels += work * (r->end_ms - from) / (at - from);
}

static void wait_for_start(double epoch)
{
	struct timespec at = {(time_t)epoch, (long)((epoch - floor(epoch)) * 1e9)};

	while (epoch > 0 && clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL) != 0)
		;
}

static void prepare(struct run *r, const struct worker *w, double seconds)
{
	double kernel_ns = w->kernel_us * 1000;
	int inflight = w->inflight;

	r->launch = w->launch;
	r->poll = strcmp(w->wait, "poll") == 0;
	r->units = (unsigned)fmax(1, (kernel_ns - r->k.gap_ns) / r->k.ns_per_unit);
	r->batch = (int)fmax(1, BATCH_NS / kernel_ns);
	if (!inflight)
		inflight = (int)fmin(MAX_INFLIGHT, fmax(4, DEPTH_NS / kernel_ns));
	if (r->batch > inflight)
		r->batch = inflight;
	/* one in flight: the card has nothing while the host looks at the result */
	r->depth = inflight / r->batch > 1 || w->inflight == 1 ? inflight / r->batch : 2;
	r->nstreams = w->streams < 1 ? 1 : w->streams > MAX_STREAMS ? MAX_STREAMS : w->streams;
	r->end_ms = seconds * 1000;
	r->nwindows = (int)fmin(MAX_WINDOWS, r->end_ms / WINDOW_MS);
	r->window = calloc((size_t)r->nwindows + 1, sizeof(*r->window));
	r->done = calloc((size_t)r->depth, sizeof(*r->done));
	if (!r->window || !r->done)
		die("saturate", "out of host memory");
	for (int i = 0; i < r->nstreams; i++)
		must(cu.StreamCreate(&r->stream[i], 1), "cuStreamCreate");
	must(cu.EventCreate(&r->start, 0), "cuEventCreate");
	for (int i = 0; i < r->depth; i++)
		must(cu.EventCreate(&r->done[i], strcmp(w->wait, "block") == 0), "cuEventCreate");
	if (strcmp(w->launch, "graph") == 0)
		make_graph(r);
}

static void keep_busy(struct run *r)
{
	double late = late_s();
	uint64_t until;
	long sent = 0, seen = 0;

	must(cu.EventRecord(r->start, r->stream[0]), "cuEventRecord");
	must(cu.EventSynchronize(r->start), "cuEventSynchronize");
	until = now_ns() + (uint64_t)(r->end_ms * 1e6);
	while (now_ns() < until) {
		if (asked)
			tell_memory();
		if (sent - seen == r->depth)
			count_batch(r, seen++);
		launch_batch(r, sent++);
	}
	r->late_s = late_s() - late;
	while (seen < sent)
		count_batch(r, seen++);
}

static void print_result(const struct run *r, const struct worker *w)
{
	double solo_ns = r->units * r->k.ns_per_unit + r->k.gap_ns, s = r->end_ms / 1000;
	double rate = r->kernels / s, solo = w->solo_rate > 0 ? w->solo_rate : 1e9 / solo_ns;
	double mean = 0, var = 0;

	for (int i = 0; i < r->nwindows; i++)
		mean += r->window[i] / (WINDOW_MS / 1000) / solo / r->nwindows;
	for (int i = 0; i < r->nwindows; i++)
		var += pow(r->window[i] / (WINDOW_MS / 1000) / solo - mean, 2) / r->nwindows;
	printf("{\"cmd\":\"saturate\",\"device\":%d,\"launch\":\"%s\",\"seconds\":%.3f,\"kernel_"
	       "us\":%.3f,"
	       "\"kernels\":%.1f,\"rate\":%.3f,\"fraction\":%.5f,\"window_mean\":%.5f,\"window_"
	       "sd\":%.5f,"
	       "\"windows\":%d,\"late\":%.5f,\"ns_per_unit\":%.4f,\"gap_ns\":%.0f,\"grid\":%u,"
	       "\"first_windows\":"
	       "[",
	       w->device, r->launch, s, solo_ns / 1000, r->kernels, rate, rate / solo, mean,
	       sqrt(var), r->nwindows, r->late_s / s, r->k.ns_per_unit, r->k.gap_ns, r->k.grid);
	for (int i = 0; i < r->nwindows && i < FIRST_WINDOWS; i++)
		printf("%s%.4f", i ? "," : "", r->window[i] / (WINDOW_MS / 1000) / solo);
	puts("]}");
	fflush(stdout);
}

void cmd_saturate(struct worker *w, double seconds)
{
	struct run r;

	memset(&r, 0, sizeof(r));
	if (seconds <= 0 || w->kernel_us <= 0)
		die("--saturate",
		    "want seconds and --kernel-us above 0, e.g. --kernel-us 200 --saturate 3");
	kernel_open(&r.k, w);
	prepare(&r, w, seconds);
	signal(SIGUSR1, ask);
	wait_for_start(w->start_at);
	keep_busy(&r);
	print_result(&r, w);
	if (r.graph)
		must(cu.GraphExecDestroy(r.graph), "cuGraphExecDestroy");
	for (int i = 0; i < r.depth; i++)
		must(cu.EventDestroy(r.done[i]), "cuEventDestroy");
	must(cu.EventDestroy(r.start), "cuEventDestroy");
	for (int i = 0; i < r.nstreams; i++)
		must(cu.StreamDestroy(r.stream[i]), "cuStreamDestroy");
	kernel_close(&r.k);
	free(r.window);
	free(r.done);
}

void cmd_calibrate(struct worker *w)
{
	struct kernel k;

	kernel_open(&k, w);
	printf("{\"cmd\":\"calibrate\",\"device\":%d,\"ns_per_unit\":%.4f,\"gap_ns\":%.0f}\n",
	       w->device, k.ns_per_unit, k.gap_ns);
	fflush(stdout);
	kernel_close(&k);
}
