// SPDX-License-Identifier: Apache-2.0
/*
 * samples.c - reads the progress every 2 ms by plain loads and appends it to a
 * mapped file, which stays readable whatever happens to this process.
 *
 * The file: struct head, then count entries of struct sample. The benchmark's
 * package series reads it.
 */
#define _GNU_SOURCE
#include "load.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PERIOD_NS 2000000ull
#define MAGIC 0x31444145474c5056ull
#define SLACK_S 30 /* a contended tenant ends late */

struct head {
	uint64_t magic;
	uint64_t count;  /* entries that are complete */
	uint64_t grid;   /* blocks of work in a unit */
	uint64_t kernel; /* units in a kernel, where work stays 0 */
};

struct sample {
	uint64_t t, work, kernels;
};

struct samples {
	pthread_t thread;
	const struct card *card;
	struct head *head;
	struct sample *entry;
	uint64_t capacity;
	uint64_t work[2]; /* the most that was read */
	size_t bytes;     /* of the file */
	volatile int stop;
};

/* Writes entry n. */
static void take_sample(struct samples *s, uint64_t n)
{
	struct sample *e = &s->entry[n];

	e->t = now_ns();
	for (int i = 0; i < 2; i++) {
		uint64_t w = s->card->progress[i].work;

		/* stores of several multiprocessors may arrive out of order */
		s->work[i] = w > s->work[i] ? w : s->work[i];
	}
	e->work = s->work[0] + s->work[1];
	e->kernels = card_kernels(s->card);
	__atomic_store_n(&s->head->count, n + 1, __ATOMIC_RELEASE);
}

/* The first and the last entry belong to samples_start and samples_stop. */
static void *sampler(void *arg)
{
	struct samples *s = arg;
	uint64_t next = now_ns();

	for (uint64_t n = 1; n < s->capacity - 1 && !s->stop; n++) {
		next += PERIOD_NS;
		if (next < s->entry[n - 1].t)
			next = s->entry[n - 1].t;
		sleep_until(next);
		take_sample(s, n);
	}
	return NULL;
}

struct samples *samples_start(const char *path, const struct card *c, const struct shape *s,
			      double seconds)
{
	struct samples *x = calloc(1, sizeof(*x));
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (!x || fd < 0)
		die(path, "cannot be made");
	x->card = c;
	x->capacity = (uint64_t)((seconds + SLACK_S) * 1e9 / PERIOD_NS);
	x->bytes = sizeof(*x->head) + x->capacity * sizeof(*x->entry);
	if (ftruncate(fd, (off_t)x->bytes))
		die(path, "no room");
	x->head = mmap(NULL, x->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (x->head == MAP_FAILED)
		die(path, "cannot be mapped");
	x->entry = (struct sample *)(x->head + 1);
	x->head->magic = MAGIC;
	x->head->grid = c->grid * (s->kind == RHYTHM ? s->units : 1);
	x->head->kernel = s->kind == PRODUCT || s->kind == RHYTHM ? 1 : s->units;
	take_sample(x, 0); /* before the work, also if the thread gets a processor late */
	if (pthread_create(&x->thread, NULL, sampler, x))
		die(path, "no thread");
	return x;
}

void samples_stop(struct samples *s)
{
	s->stop = 1;
	pthread_join(s->thread, NULL);
	take_sample(s, s->head->count); /* the end of the work */
	munmap(s->head, s->bytes);
	free(s);
}
