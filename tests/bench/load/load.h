/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - one tenant of the benchmark: a program that keeps a card busy in a
 * given way, while a thread reads its progress from mapped memory and writes
 * it to a file. No CUDA call takes part in the measuring.
 *
 * main.c     command line, and when to begin   card.c  the kernels on a card
 * work.c     the shapes of load                cost.c  what a launch costs
 * rhythm.c   a shape made of parts             rhythm_parse.c  its text
 * direct.c   the driver without what is preloaded
 * samples.c  the thread and its file           kernels.ptx
 */
#ifndef VGPU_LOAD_H
#define VGPU_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../gpu/worker.h"

/* STEPS: a graph, and the host waits for each launch of it. EAGER: kernels that the host
 * launches about as fast as the card runs them, in steps whose results it waits for. */
enum kind { SPIN, GRAPH, STEPS, EAGER, PERSISTENT, BURST, PRODUCT, RHYTHM };

/* A kernel of n units takes n * 20 us on a card of its own. */
struct shape {
	const char *name;
	enum kind kind;
	unsigned units;      /* of each kernel */
	unsigned per_launch; /* kernels */
	unsigned depth;      /* launches in flight */
};

/* The shape rhythm: steps of kernels that the host launches, and when it waits for them.
 * Times are microseconds. */
struct rhythm {
	unsigned kernels; /* of a step */
	double kernel;    /* how long each takes on a card of its own */
	double launch;    /* the host computes before each launch, and after each step */
	double gap;
	unsigned wait;       /* it waits at every so many steps; 0: never */
	unsigned ahead;      /* with waits batches of so many steps in flight, without steps */
	bool graph;          /* a step is one launch of a graph */
	unsigned streams;    /* 1, or 2 that take turns */
	unsigned copy;       /* bytes to the card at each step, on each stream */
	double late_ms;      /* how long the data of a step is late, one step of late_every */
	unsigned late_every; /* 0: never */
};

/* Mapped memory that the card writes. */
struct progress {
	volatile uint64_t work; /* blocks of work done; stays 0 on a simulated card */
	volatile uint32_t kernels;
	volatile uint32_t stop; /* written by us */
};

struct card {
	CUstream stream, second; /* second is of the shape rhythm, NULL without one */
	CUfunction spin, product, empty, beat;
	CUdeviceptr counters, a, b, c;
	struct progress *progress; /* of each stream */
	unsigned grid, inner;
	int sms;
};

struct options {
	const char *shape, *samples, *rhythm;
	unsigned inner, sms;
	unsigned on_ms, off_ms; /* work and rest in turn; 0: no rest */
	bool calibrate, cost, cost_pairs, cost_paced;
};

/* card.c */
/* sms: of the whole card; 0: ask the driver, which under MPS tells a part. */
void card_open(struct card *c, unsigned inner, unsigned sms);
void card_launch(struct card *c, const struct shape *s);
unsigned card_beat_units(double us); /* units in a kernel of so many microseconds */
/* A kernel of so many microseconds on stream 0 or 1. */
void card_beat(struct card *c, double us, unsigned stream);
uint32_t card_kernels(const struct card *c); /* finished so far */
unsigned card_calibrate(struct card *c);     /* inner rounds of a unit of 20 us */

/* work.c */
const struct shape *shape_named(const char *name);
void compute(uint64_t ns); /* keeps the processor busy */
void work(struct card *c, const struct shape *s, const struct options *o, uint64_t start,
	  uint64_t end);

/* rhythm_parse.c */
/* Reads kernels=N,kernel=US,...; false: why says what is wrong and what is possible. */
bool rhythm_parse(const char *text, struct rhythm *r, char *why, size_t size);

/* rhythm.c */
struct player;
/* Makes all that the steps need, and does one. */
struct player *rhythm_open(struct card *c, const struct rhythm *r);
void rhythm_play(struct player *p, uint64_t start, uint64_t end);

/* cost.c */
void cost(struct card *c, bool paced);
/* The same launches with and without what is preloaded, in turn. */
void cost_pairs(struct card *c, bool paced);

/* direct.c */
/* A function of libcuda itself, which must be loaded; NULL: it has none of that name. */
void *direct(const char *symbol);

/* samples.c */
struct samples;
/* Units are those of the shape, of a rhythm its kernels. */
struct samples *samples_start(const char *path, const struct card *c, const struct shape *s,
			      double seconds);
void samples_stop(struct samples *s);

/* main.c */
void sleep_until(uint64_t ns); /* CLOCK_MONOTONIC */

#endif
