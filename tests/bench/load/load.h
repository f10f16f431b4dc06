/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - one tenant of the benchmark: a program that keeps a card busy in a
 * given way, while a thread reads its progress from mapped memory and writes
 * it to a file. No CUDA call takes part in the measuring.
 *
 * main.c     command line, and when to begin   card.c  the kernels on a card
 * work.c     the shapes of load                cost.c  what a launch costs
 * direct.c   the driver without what is preloaded
 * samples.c  the thread and its file           kernels.ptx
 */
#ifndef VGPU_LOAD_H
#define VGPU_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpu/worker.h"

/* STEPS: a graph, and the host waits for each launch of it. EAGER: kernels that the host
 * launches about as fast as the card runs them, in steps whose results it waits for. */
enum kind { SPIN, GRAPH, STEPS, EAGER, PERSISTENT, BURST, PRODUCT };

/* A kernel of n units takes n * 20 us on a card of its own. */
struct shape {
	const char *name;
	enum kind kind;
	unsigned units;      /* of each kernel */
	unsigned per_launch; /* kernels */
	unsigned depth;      /* launches in flight */
};

/* Mapped memory that the card writes. */
struct progress {
	volatile uint64_t work; /* blocks of work done; stays 0 on a simulated card */
	volatile uint32_t kernels;
	volatile uint32_t stop; /* written by us */
};

struct card {
	CUstream stream;
	CUfunction spin, product, empty;
	CUdeviceptr counters, a, b, c;
	struct progress *progress;
	unsigned grid, inner;
	int sms;
};

struct options {
	const char *shape, *samples;
	unsigned inner, sms;
	unsigned on_ms, off_ms; /* work and rest in turn; 0: no rest */
	bool calibrate, cost, cost_pairs, cost_paced;
};

/* card.c */
/* sms: of the whole card; 0: ask the driver, which under MPS tells a part. */
void card_open(struct card *c, unsigned inner, unsigned sms);
void card_launch(struct card *c, const struct shape *s);
unsigned card_calibrate(struct card *c); /* inner rounds of a unit of 20 us */

/* work.c */
const struct shape *shape_named(const char *name);
void work(struct card *c, const struct shape *s, const struct options *o, uint64_t start,
	  uint64_t end);

/* cost.c */
void cost(struct card *c, bool paced);
/* The same launches with and without what is preloaded, in turn. */
void cost_pairs(struct card *c, bool paced);

/* direct.c */
/* A function of libcuda itself, which must be loaded; NULL: it has none of that name. */
void *direct(const char *symbol);

/* samples.c */
struct samples;
struct samples *samples_start(const char *path, const struct card *c, const struct shape *s,
			      double seconds);
void samples_stop(struct samples *s);

/* main.c */
void sleep_until(uint64_t ns); /* CLOCK_MONOTONIC */

#endif
