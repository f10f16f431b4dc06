/* SPDX-License-Identifier: Apache-2.0 */
/*
 * obeys.c - a process with a context that does what it is told on its standard input, a command a
 * line, and prints a line of JSON for each. With --cards it has a context on more than one, of
 * which it uses the first.
 *
 *   obeys [--libdir DIR] [--us 10000] [--queued 8] [--cards 1]
 *
 *   alloc MIB   takes memory; "result" is the driver's
 *   free        gives back what it took last
 *   work        keeps so many kernels of --us queued, in a thread of its own
 *   done        what kernels have taken that have ended, "done_ns"; "launched"
 *   rest        no more of that, once all has ended; the same figures
 *
 * It ends with its input.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "kernels.h"

#define TAKEN 64

static struct {
	struct kernels k;
	CUresult (*set)(CUcontext), (*get)(CUcontext *), (*alloc)(CUdeviceptr *, size_t),
		(*release)(CUdeviceptr), (*make)(CUevent *, unsigned), (*record)(CUevent, CUstream),
		(*wait)(CUevent);
	CUcontext ctx;
	unsigned us, queued;
	atomic_bool working;
	atomic_ullong done_ns, launched;
	pthread_t thread;
} p;

static int open_driver(const char *libdir)
{
	int failed = kernels_open(&p.k, libdir);
	void *cuda = library(libdir, "libcuda.so.1");

	if (failed)
		return failed;
	p.set = needed(cuda, "cuCtxSetCurrent");
	p.get = needed(cuda, "cuCtxGetCurrent");
	p.alloc = needed(cuda, "cuMemAlloc_v2");
	p.release = needed(cuda, "cuMemFree_v2");
	p.make = needed(cuda, "cuEventCreate");
	p.record = needed(cuda, "cuEventRecord");
	p.wait = needed(cuda, "cuEventSynchronize");
	if (!p.set || !p.get || !p.alloc || !p.release || !p.make || !p.record || !p.wait)
		return 2;
	return p.get(&p.ctx) ? 3 : 0;
}

static int more_cards(int n, const char *libdir)
{
	CUresult (*create)(CUcontext *, unsigned, CUdevice) =
		needed(library(libdir, "libcuda.so.1"), "cuCtxCreate_v2");
	CUcontext ctx;

	for (int i = 1; i < n; i++)
		if (create(&ctx, 0, i))
			return 3;
	return p.set(p.ctx) ? 3 : 0;
}

static void *work(void *unused)
{
	CUevent ended[256] = {NULL};
	unsigned long long i = 0, waited = 0;

	(void)unused;
	if (p.set(p.ctx))
		exit(4);
	for (unsigned k = 0; k < p.queued; k++)
		if (p.make(&ended[k], 2)) /* no timing */
			exit(5);
	while (waited < i || p.working) {
		if (p.working && i - waited < p.queued) {
			if (!kernels_launch(&p.k, 1, p.us * 1000 / NS_PER_UNIT) ||
			    p.record(ended[i % p.queued], p.k.stream))
				exit(6);
			i++;
			p.launched++;
			continue;
		}
		if (p.wait(ended[waited % p.queued]))
			exit(7);
		waited++;
		p.done_ns += (unsigned long long)p.us * 1000;
	}
	return NULL;
}

static void tell(void)
{
	printf("{\"done_ns\":%llu,\"launched\":%llu}\n", (unsigned long long)p.done_ns,
	       (unsigned long long)p.launched);
}

static void obey(const char *line)
{
	static CUdeviceptr taken[TAKEN];
	static int n;
	int mib;

	if (sscanf(line, "alloc %d", &mib) == 1 && n < TAKEN) {
		CUresult r = p.alloc(&taken[n], (size_t)mib << 20);

		n += r == 0;
		printf("{\"result\":%d}\n", r);
	} else if (strncmp(line, "free", 4) == 0 && n > 0) {
		printf("{\"result\":%d}\n", p.release(taken[--n]));
	} else if (strncmp(line, "work", 4) == 0 && !p.working) {
		p.working = true;
		printf("{\"result\":%d}\n", pthread_create(&p.thread, NULL, work, NULL));
	} else if (strncmp(line, "rest", 4) == 0 && p.working) {
		p.working = false;
		pthread_join(p.thread, NULL);
		tell();
	} else {
		tell();
	}
}

int main(int argc, char **argv)
{
	char line[64];
	int failed;

	p.us = (unsigned)atoi(opt(argc, argv, "--us", "10000"));
	p.queued = (unsigned)atoi(opt(argc, argv, "--queued", "8"));
	if (p.queued < 1 || p.queued > 256)
		return 2;
	failed = open_driver(opt(argc, argv, "--libdir", ""));
	if (!failed)
		failed = more_cards(atoi(opt(argc, argv, "--cards", "1")),
				    opt(argc, argv, "--libdir", ""));
	if (failed)
		return failed;
	setlinebuf(stdout);
	printf("{\"pid\":%d}\n", (int)getpid());
	while (fgets(line, sizeof line, stdin))
		obey(line);
	return 0;
}
