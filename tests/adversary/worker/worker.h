/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - between the interpreter and the operations. */
#ifndef ADVERSARY_WORKER_H
#define ADVERSARY_WORKER_H

#include <stdint.h>

struct operation {
	const char *name;
	void (*run)(const unsigned *arg);
};
extern const struct operation operations[];
extern const unsigned noperations;

/* What has to be there before them. Returns 0, or -1. */
int operations_begin(void);
/* A thread's first: makes context I current, and makes it where it is not there. */
void op_context(const unsigned *arg);
void op_wait_all(const unsigned *arg);

/* lengths.c */
void op_vary(const unsigned *arg);
void op_ring(const unsigned *arg);
/* memory.c */
void op_memgraph(const unsigned *arg);
void op_create(const unsigned *arg);
void op_release(const unsigned *arg);
void op_export(const unsigned *arg);
void op_import(const unsigned *arg);
void op_map(const unsigned *arg);
void op_unmap(const unsigned *arg);
void op_range(const unsigned *arg);
void op_shut(const unsigned *arg);
void op_give(const unsigned *arg);
void op_take(const unsigned *arg);
void op_pool(const unsigned *arg);
void op_fill(const unsigned *arg);
void op_share(const unsigned *arg);

extern double worker_until; /* CLOCK_MONOTONIC, in seconds */

/* Memory of all processes of the program. */
#define RANKS 8
#define ROUNDS 32768
struct shared {
	unsigned refused; /* calls that failed for want of memory */
	char first[32];   /* the first of these calls */
	/* flag[N][I] starts rank I of round N (op_ring). */
	uint32_t flag[ROUNDS][RANKS];
};
extern struct shared *shared;
/* A socket pair: descriptors on their way between the processes. */
extern int bag[2];

#endif
