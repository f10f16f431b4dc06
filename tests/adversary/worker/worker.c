/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - runs a program of tests/adversary: some processes, each with some threads, each of
 * which does its list of operations over and over until the time is up.
 *
 *   vgpu-adversary PROGRAM SECONDS [fits]
 *
 * A line of the program is a word and up to four numbers (operations.c); "proc MS HOW" and
 * "thread" begin lists. A process with MS not 0 ends after so many milliseconds and is started
 * again: HOW 0: it exits with its work on the way, 1: it waits for it, 2: it is killed.
 *
 * An operation that fails is left behind: what counts is what the card did. Where a process dies by
 * a signal of its own, or hangs, the worker exits with 3. With "fits" it exits with 4 if an operation
 * was refused memory. It prints how many rounds of a ring (op_ring) began, in how many seconds from
 * the first one on, how many seconds the longest one took, and by how many seconds the program
 * ended late.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../stress/programs/common.h"
#include "worker.h"

#define MOST 128
#define HANG_S 90

struct op {
	void (*run)(const unsigned *);
	unsigned arg[4];
};

struct list {
	struct op op[MOST];
	unsigned n;
};

static struct program {
	struct list thread[MOST];
	unsigned threads, lives_ms, how;
} program[8];
static unsigned processes;
double worker_until;
struct shared *shared;
int bag[2];

/* The progress of the ring, as the main process sees it. */
static struct {
	unsigned rounds;
	double first, last, longest;
} ring;

static int share(void)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_DGRAM, 0, bag))
		return -1;
	shared->flag[0][0] = 1;
	return 0;
}

static void watch_ring(double now)
{
	while (ring.rounds + 1 < ROUNDS &&
	       __atomic_load_n(&shared->flag[ring.rounds + 1][0], __ATOMIC_RELAXED)) {
		if (ring.rounds++ == 0)
			ring.first = now;
		else if (now - ring.last > ring.longest)
			ring.longest = now - ring.last;
		ring.last = now;
	}
	if (ring.rounds && now - ring.last > ring.longest)
		ring.longest = now - ring.last;
}

/* No kernel waits any longer. */
static void end_ring(void)
{
	for (unsigned i = ring.rounds; i < ROUNDS; i++)
		for (unsigned k = 0; k < RANKS; k++)
			__atomic_store_n(&shared->flag[i][k], 1, __ATOMIC_RELAXED);
}

static int read_line(const char *line)
{
	struct program *p = processes ? &program[processes - 1] : NULL;
	struct list *l = p && p->threads ? &p->thread[p->threads - 1] : NULL;
	unsigned a[4] = {0};
	char word[16];

	if (sscanf(line, "%15s %u %u %u %u", word, &a[0], &a[1], &a[2], &a[3]) < 1)
		return 0;
	if (*word == '#')
		return 0;
	if (strcmp(word, "proc") == 0 && processes < sizeof program / sizeof *program) {
		program[processes++] = (struct program){.lives_ms = a[0], .how = a[1]};
		return 0;
	}
	if (strcmp(word, "thread") == 0 && p && p->threads < MOST) {
		p->threads++;
		return 0;
	}
	for (unsigned i = 0; l && l->n < MOST && i < noperations; i++) {
		if (strcmp(word, operations[i].name) == 0) {
			l->op[l->n++] = (struct op){operations[i].run, {a[0], a[1], a[2], a[3]}};
			return 0;
		}
	}
	fprintf(stderr, "adversary: %s", line);
	return -1;
}

static int read_program(const char *path)
{
	FILE *f = fopen(path, "r");
	char line[128];
	int bad = !f;

	while (f && !bad && fgets(line, sizeof line, f))
		bad = read_line(line);
	if (f)
		fclose(f);
	return bad;
}

static void *run_list(void *arg)
{
	const struct list *l = arg;

	op_context((const unsigned[]){0});
	while (l->n && now_s() < worker_until)
		for (unsigned i = 0; i < l->n && now_s() < worker_until; i++)
			l->op[i].run(l->op[i].arg);
	return NULL;
}

static void run_process(struct program *p)
{
	pthread_t t[MOST];
	double mine = now_s() + p->lives_ms / 1e3;

	if (p->lives_ms && p->how < 2 && mine < worker_until)
		worker_until = mine;
	if (operations_begin())
		_exit(2);
	for (unsigned i = 1; i < p->threads; i++)
		if (pthread_create(&t[i], NULL, run_list, &p->thread[i]))
			_exit(2);
	if (p->threads)
		run_list(&p->thread[0]);
	for (unsigned i = 1; i < p->threads; i++)
		pthread_join(t[i], NULL);
	if (p->how == 1)
		op_wait_all(NULL);
	exit(0);
}

static pid_t start(struct program *p)
{
	pid_t pid = fork();

	if (pid == 0)
		run_process(p);
	return pid;
}

int main(int argc, char **argv)
{
	struct {
		pid_t pid;
		double kill_at;
	} child[sizeof program / sizeof *program] = {0};
	unsigned running = 0;
	int bad = 0, status, ended = 0;
	double end, began = now_s();

	if (argc < 3 || argc > 4 || share() || read_program(argv[1]))
		return 2;
	worker_until = now_s() + atof(argv[2]);
	end = worker_until + HANG_S;
	do {
		running = 0;
		if (!ended && now_s() < worker_until) {
			watch_ring(now_s());
		} else if (!ended) {
			end_ring();
			ended = 1;
		}
		for (unsigned i = 0; i < processes; i++) {
			struct program *p = &program[i];

			if (child[i].pid && child[i].kill_at > 0 && now_s() > child[i].kill_at)
				kill(child[i].pid, SIGKILL);
			if (child[i].pid && waitpid(child[i].pid, &status, WNOHANG) > 0) {
				bad |= child[i].kill_at > 0 ? 0 : status;
				child[i].pid = 0;
			}
			if (!child[i].pid && now_s() < worker_until && !bad &&
			    (child[i].kill_at >= 0)) {
				child[i].pid = start(p);
				/* Below 0: it is not started again. */
				child[i].kill_at = p->how == 2 && p->lives_ms
							   ? now_s() + p->lives_ms / 1e3
						   : p->lives_ms ? 0
								 : -1;
			}
			running += child[i].pid > 0;
		}
		usleep(2000);
		if (now_s() > end) {
			fprintf(stderr, "adversary: hangs\n");
			for (unsigned i = 0; i < processes; i++)
				if (child[i].pid)
					kill(child[i].pid, SIGABRT);
			return 3;
		}
	} while (running);
	if (!ring.rounds)
		ring.longest = now_s() - began;
	printf("%u %.3f %.3f %.3f\n", ring.rounds, ring.rounds ? worker_until - ring.first : 0,
	       ring.longest, now_s() - worker_until);
	if (bad) {
		fprintf(stderr, "adversary: a process ended with status %#x\n", bad);
		return 3;
	}
	if (argc == 4 && shared->refused) {
		fprintf(stderr,
			"adversary: %u calls were refused memory that fits, the first: %s\n",
			shared->refused, shared->first);
		return 4;
	}
	return 0;
}
