/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h - between the interpreter and the operations. */
#ifndef ADVERSARY_WORKER_H
#define ADVERSARY_WORKER_H

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

extern double worker_until; /* CLOCK_MONOTONIC, in seconds */

#endif
