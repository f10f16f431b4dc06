/* SPDX-License-Identifier: Apache-2.0 */
/*
 * card.h - a card for stubs of OpenCL, Vulkan and OpenGL. A command takes its time once what is before it
 * in its queue has ended, and what it waits for; queues run beside each other. Nothing computes.
 * For the library it is a program without CUDA: it asks the simulated kernel driver
 * (tests/simgpu/librm) for a device and a channel group.
 */
#ifndef QUEUES_STUB_CARD_H
#define QUEUES_STUB_CARD_H

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../simgpu/librm/local.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"

struct command;
/* Happens at a time, or when a command has ended. */
struct happening {
	double at; /* 0: not yet, or by a command */
	struct command *by;
};
struct command {
	struct command *before; /* in its queue, as long as its end is not known */
	struct happening *waits;
	double put, takes, begin, end; /* end 0: not known yet */
	int refs;
};
struct queue {
	struct command *last;
	bool any_order; /* commands do not wait for those before */
};

static pthread_mutex_t card_lock = PTHREAD_MUTEX_INITIALIZER;
#define SPANS (1u << 20)
static struct span {
	double begin, end;
} spans[SPANS];
static unsigned nspans;

static double card_now(void)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void card_nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static struct command *kept(struct command *c)
{
	if (c)
		c->refs++;
	return c;
}

static void given_up(struct command *c)
{
	while (c && --c->refs == 0) {
		struct command *before = c->before;

		free(c);
		c = before;
	}
}

/* Whether its end is known; with the lock held. */
static bool known(struct command *c)
{
	double begin = c->put;

	if (c->end > 0)
		return true;
	if (c->before && !known(c->before))
		return false;
	if (c->waits && c->waits->at == 0 && (!c->waits->by || !known(c->waits->by)))
		return false;
	if (c->before && c->before->end > begin)
		begin = c->before->end;
	if (c->waits && c->waits->at > begin)
		begin = c->waits->at;
	if (c->waits && c->waits->by && c->waits->by->end > begin)
		begin = c->waits->by->end;
	c->begin = begin;
	c->end = begin + c->takes;
	if (c->takes > 0 && nspans < SPANS)
		spans[nspans++] = (struct span){c->begin, c->end};
	given_up(c->before);
	c->before = NULL;
	return true;
}

static bool over(struct command *c)
{
	bool r;

	pthread_mutex_lock(&card_lock);
	r = known(c) && c->end <= card_now();
	pthread_mutex_unlock(&card_lock);
	return r;
}

static void await(struct command *c)
{
	while (!over(c))
		card_nap();
}

static void await_queue(struct queue *q)
{
	struct command *last;

	pthread_mutex_lock(&card_lock);
	last = kept(q->last);
	pthread_mutex_unlock(&card_lock);
	if (last)
		await(last);
	pthread_mutex_lock(&card_lock);
	given_up(last);
	pthread_mutex_unlock(&card_lock);
}

/* For whom it returns it to, and for the queue. */
static struct command *put(struct queue *q, double takes, struct happening *waits)
{
	struct command *c = calloc(1, sizeof *c);

	if (!c)
		abort();
	pthread_mutex_lock(&card_lock);
	*c = (struct command){.before = q->any_order ? NULL : q->last,
			      .waits = waits,
			      .put = card_now(),
			      .takes = takes,
			      .refs = 2};
	if (q->any_order)
		given_up(q->last);
	q->last = c;
	known(c);
	pthread_mutex_unlock(&card_lock);
	return c;
}

static int by_begin(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Seconds from a time on in which any command ran, up to another time. */
double stub_busy(double from, double to);
double stub_busy(double from, double to)
{
	double busy = 0, end = from;

	pthread_mutex_lock(&card_lock);
	qsort(spans, nspans, sizeof *spans, by_begin);
	for (unsigned i = 0; i < nspans; i++) {
		double b = spans[i].begin > end ? spans[i].begin : end;
		double e = spans[i].end < to ? spans[i].end : to;

		if (e <= b)
			continue;
		busy += e - b;
		end = e;
	}
	pthread_mutex_unlock(&card_lock);
	return busy;
}

static uint32_t made(int fd, uint32_t root, uint32_t parent, uint32_t cls, void *params,
		     uint32_t size)
{
	struct rm_alloc64 a = {.root = root,
			       .parent = parent,
			       .cls = cls,
			       .params = (uintptr_t)params,
			       .size = size};

	if (ioctl(fd, _IOWR('F', ESC_ALLOC, struct rm_alloc64), &a) || a.status) {
		fprintf(stderr, "stub: class %#x: no object of the kernel driver\n", cls);
		abort();
	}
	return a.object;
}

/* What a context of the driver begins with. */
static void open_card(void)
{
	struct device_params p = {.instance = 0};
	int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	uint32_t root = made(fd, 0, 0, 0x41, NULL, 0);
	uint32_t device = made(fd, root, root, 0x80, &p, sizeof p);

	made(fd, root, device, 0xA06C, NULL, 0);
}

#endif
