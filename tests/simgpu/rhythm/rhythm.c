// SPDX-License-Identifier: Apache-2.0
/*
 * rhythm.c - programs that do not keep their queue full, beside each other on a card.
 *
 *   rhythm STATE SECONDS SLICE_US KERNELS KERNEL_US LAUNCH_US GAP_US WAIT [SLICE_US ...]
 *
 * As training and inference do: in each step the host launches KERNELS kernels one after another,
 * each taking it LAUNCH_US, then has other things to do for GAP_US. At each step whose number is a multiple of
 * WAIT it waits for the card. A slice of 0 is the card's own. Prints a line of JSON: the steps of
 * each program in a second.
 *
 * The hosts run in the card's time, not in that of this machine: the next thing that happens to any of
 * them happens when the card has been advanced to it.
 */
#define _GNU_SOURCE
#include "../model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS 4
#define WAKE_NS 20000.0      /* from the end of the work to the host that sees it */
#define BEGIN_NS 200000000.0 /* what comes before is not counted */
#define ROOM 32              /* a host that finds its stream full waits for so many to be done */

enum doing { LAUNCHING, FULL, WAITING };

/* All times are in nanoseconds. */
struct host {
	long kernels, wait;
	double kernel, launch, gap;
	uint32_t stream;
	enum doing doing;
	uint64_t index; /* what it waits for */
	double at;      /* when it does what comes next, unless it waits */
	long launched, step, steps;
	double first, last;
};

static void fail(const char *what, int rc)
{
	fprintf(stderr, "rhythm: %s: %s\n", what, strerror(-rc));
	exit(1);
}

/* The host is at work for so long, more or less. */
static void work(struct host *h, double ns)
{
	h->at += ns * (0.8 + 0.4 * (double)rand() / RAND_MAX);
}

static void end_step(struct host *h, double start)
{
	h->launched = 0;
	h->step++;
	work(h, h->gap);
	if (h->step % h->wait == 0) { /* counted from the end of such a step to the end of one */
		h->last = h->at;
		if (!h->first && h->at - start >= BEGIN_NS) {
			h->first = h->at;
			h->steps = h->step;
		}
	}
	work(h, h->launch);
}

static void launch(struct sim_state *st, struct host *h, double start)
{
	const struct sim_card_config *c = &st->card[0].conf;
	struct sim_op op = {.kind = SIM_KERNEL, .left_ns = (uint64_t)h->kernel + c->gap_ns};

	op.ready_ns = (uint64_t)h->at + c->latency_ns;
	if (sim_push(st, h->stream, &op, &h->index)) {
		h->doing = FULL;
		h->index = st->stream[h->stream].done + ROOM;
	} else if (++h->launched < h->kernels) {
		work(h, h->launch);
	} else if ((h->step + 1) % h->wait == 0) {
		h->doing = WAITING;
	} else {
		end_step(h, start);
	}
}

/* When something happens to a host, as things stand. */
static double next(const struct sim_state *st, const struct host *h)
{
	uint64_t now = st->card[0].now_ns, done;

	if (h->doing == LAUNCHING)
		return h->at;
	done = sim_predict(st, h->stream, h->index);
	return (double)(done > now ? done : now + 1000);
}

static void go_on(struct sim_state *st, struct host *h, double start)
{
	enum doing was = h->doing;

	if (was == LAUNCHING) {
		launch(st, h, start);
		return;
	}
	if (st->stream[h->stream].done <= h->index)
		return; /* others made it later */
	h->doing = LAUNCHING;
	h->at = (double)st->card[0].now_ns + WAKE_NS;
	if (was == WAITING)
		end_step(h, start);
}

static void open_host(struct sim_state *st, int proc, struct host *h, char **args)
{
	int ctx = proc < 0 ? proc : sim_ctx_add(st, (uint32_t)proc, 0);
	int stream = ctx < 0 ? ctx : sim_stream_add(st, (uint32_t)ctx, true, false, 0);
	uint64_t slice = strtoull(args[0], NULL, 10);

	if (stream < 0)
		fail("open a stream", stream);
	if (slice)
		sim_set_slice(st, (uint32_t)ctx, slice);
	*h = (struct host){.kernels = atol(args[1]),
			   .kernel = atof(args[2]) * 1000,
			   .launch = atof(args[3]) * 1000,
			   .gap = atof(args[4]) * 1000,
			   .wait = atol(args[5]),
			   .stream = (uint32_t)stream,
			   .at = (double)st->card[0].now_ns};
	work(h, h->launch);
}

int main(int argc, char **argv)
{
	struct sim_state *st = argc > 2 ? sim_open(argv[1]) : NULL;
	int n = (argc - 3) / 6, proc;
	struct host host[HOSTS];
	double start, end;

	if (!st || n < 1 || n > HOSTS || argc != 3 + 6 * n) {
		fprintf(stderr,
			"usage: rhythm STATE SECONDS SLICE_US KERNELS KERNEL_US LAUNCH_US GAP_US "
			"WAIT [SLICE_US ...]\n");
		return 2;
	}
	sim_lock(st);
	proc = sim_proc_add(st);
	for (int i = 0; i < n; i++)
		open_host(st, proc, &host[i], argv + 3 + 6 * i);
	start = (double)st->card[0].now_ns;
	end = start + BEGIN_NS + atof(argv[2]) * 1e9;
	while ((double)st->card[0].now_ns < end) {
		struct host *h = host;

		for (int i = 1; i < n; i++)
			if (next(st, &host[i]) < next(st, h))
				h = &host[i];
		sim_advance(st, 0, (uint64_t)next(st, h));
		go_on(st, h, start);
	}
	sim_unlock(st);
	for (int i = 0; i < n; i++)
		printf("%s%.3f", i ? "," : "[",
		       (double)(host[i].step - host[i].steps) / (host[i].last - host[i].first) *
			       1e9);
	puts("]");
	return 0;
}
