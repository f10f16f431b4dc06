/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams.c - a process that does with streams what few do.
 *
 *   streams --how HOW [--libdir DIR] [--secs 3]
 *
 *   destroyed  each kernel of 5 ms in a stream of its own, destroyed while it runs
 *   brief      the same with kernels of 1 ms, of which two are let in at a time
 *   threads    two threads, each with its own default stream: kernels of 0.4 and of 2 ms
 *   polled     a thread's default stream, never waited for but asked; kernels that have
 *              become ten times longer
 *   contexts   eight contexts in turn, a kernel of 5 ms in each
 *   many       a second context, after the first has used 40 streams
 *   captured   after a capture of the thread's default stream
 *   spins      a kernel that spins until one of another context has run, and that one, of 1 ms
 *   early      a hundred kernels of 5 ms while a capture of another stream is open, before any
 *              other work
 *   captures   kernels of 5 ms; another thread captures one graph after the other
 *   recaptures the same, each into the graph of before
 *   later      the same by a call that no library knows
 *
 *   retained   kernels of 5 ms, each with a grid of its own; after each launch another context,
 *              the card's primary one, is made and given up
 *   green      the same with a green context
 *   refused    the same; after each launch the driver refuses to destroy the primary context
 *
 * Prints the work done, as a part of the time, how many captures failed, and how many KiB more of
 * its memory are in use than after 20 steps: events that nobody destroys are in it. For the simulated
 * card, on which it is known how long a kernel takes.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels.h"

#define MS (1000000 / NS_PER_UNIT)

static struct kernels k;
static void *cuda;
static double until;
static CUresult (*create)(CUcontext *, unsigned, CUdevice), (*set_current)(CUcontext);
static CUresult (*retain)(CUcontext *, CUdevice), (*release)(CUdevice), (*destroy)(CUcontext);
static CUresult (*get_current)(CUcontext *), (*wait_for_all)(void);
static CUresult (*create_stream)(CUstream *, unsigned), (*destroy_stream)(CUstream);
static CUresult (*alloc_host)(void **, size_t, unsigned);
static CUresult (*query)(CUstream), (*load)(CUmodule *, const void *);
static CUresult (*function)(CUfunction *, CUmodule, const char *);
static CUresult (*begin)(CUstream, int), (*end)(CUstream, CUgraph *);
static CUresult (*again)(CUstream, int, CUgraph, void *, void *);
static CUresult (*end_of_thread)(CUstream, CUgraph *), (*destroy_graph)(CUgraph);

static int launch(CUstream stream, unsigned grid, unsigned units)
{
	struct kernels here = k;

	here.stream = stream;
	return kernels_launch(&here, grid, units);
}

/* Each returns what its kernels take, in units; 0: a call failed. */

static double destroyed(void)
{
	CUstream s;

	return create_stream(&s, 0) == 0 && launch(s, 1, 5 * MS) && destroy_stream(s) == 0 ? 5 * MS
											   : 0;
}

static double brief(void)
{
	CUstream s;

	return create_stream(&s, 0) == 0 && launch(s, 4, MS) && destroy_stream(s) == 0 ? MS : 0;
}

static double in_thread(unsigned grid, unsigned units)
{
	double done = 0;

	while (now_s() < until) {
		if (!launch(CU_STREAM_PER_THREAD, grid, units))
			return 0;
		done += units;
	}
	return k.wait_for(CU_STREAM_PER_THREAD) ? 0 : done;
}

static void *other_thread(void *ctx)
{
	static double done;

	done = set_current(ctx) ? 0 : in_thread(2, 2 * MS);
	return &done;
}

static double threads(void)
{
	pthread_t t;
	CUcontext ctx;
	void *other;
	double own;

	if (get_current(&ctx) || pthread_create(&t, NULL, other_thread, ctx))
		return 0;
	own = in_thread(1, 2 * MS / 5);
	pthread_join(t, &other);
	return *(double *)other > 0 ? own + *(double *)other : 0;
}

/* The host looks twice in each millisecond whether its kernel is done. */
static double polled(void)
{
	static unsigned n;
	unsigned units = n++ < 100 ? MS / 5 : 2 * MS;

	if (!launch(CU_STREAM_PER_THREAD, 1, units))
		return 0;
	while (query(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY)
		usleep(500);
	return units;
}

static const char work_ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	"// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
	".visible .entry work(.param .u32 units) { ret; }\n"
	"// simgpu: entry=spin ns_per_unit=0 wait_param=0\n"
	".visible .entry spin(.param .u64 flag) { ret; }\n"
	"// simgpu: entry=raise ns_per_unit=20 unit_param=1 count_param=0\n"
	".visible .entry raise(.param .u64 flag, .param .u32 units) { ret; }\n";

static int another(CUcontext *ctx, CUfunction *work, const char *name)
{
	CUmodule module;

	return create(ctx, 0, 0) || set_current(*ctx) || load(&module, work_ptx) ||
	       function(work, module, name);
}

static double contexts(void)
{
	static struct {
		CUcontext ctx;
		CUfunction work;
	} all[8];
	static unsigned n;
	unsigned i = n++ % 8;

	if (all[i].ctx ? set_current(all[i].ctx) : another(&all[i].ctx, &all[i].work, "work"))
		return 0;
	k.work = all[i].work;
	return launch(NULL, 1, 5 * MS) ? 5 * MS : 0;
}

static double many(void)
{
	static CUcontext second;
	CUstream s;

	for (unsigned i = 0; !second && i < 40; i++)
		if (create_stream(&s, 0) || !launch(s, 1, MS / 100) || k.wait_for(s))
			return 0;
	if (!second && another(&second, &k.work, "work"))
		return 0;
	return launch(NULL, 1, 5 * MS) ? 5 * MS : 0;
}

static double spins(void)
{
	static CUcontext ctx[2];
	static CUfunction spin, raise;
	static void *flag;
	uint64_t address;
	unsigned units = MS;
	void *params[] = {&address, &units};

	if (!flag && (another(&ctx[0], &spin, "spin") || another(&ctx[1], &raise, "raise") ||
		      alloc_host(&flag, sizeof(unsigned), 3)))
		return 0;
	address = (uint64_t)(uintptr_t)flag;
	*(volatile unsigned *)flag = 0;
	if (set_current(ctx[0]) || k.launch(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) ||
	    set_current(ctx[1]) || k.launch(raise, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL))
		return 0;
	return wait_for_all() || set_current(ctx[0]) || wait_for_all() ? 0 : MS;
}

static double captured(void)
{
	static CUgraph graph;

	if (!graph && (begin(CU_STREAM_PER_THREAD, 0) || !launch(CU_STREAM_PER_THREAD, 1, MS) ||
		       end_of_thread(NULL, &graph)))
		return 0;
	return launch(NULL, 1, 5 * MS) ? 5 * MS : 0;
}

static double early(void)
{
	static CUstream s;
	CUgraph graph;

	if (s)
		return launch(k.stream, 1, 5 * MS) ? 5 * MS : 0;
	if (create_stream(&s, 1) || begin(s, 0))
		return 0;
	for (unsigned i = 0; i < 100; i++)
		if (!launch(k.stream, 1, 5 * MS))
			return 0;
	return end(s, &graph) || destroy_graph(graph) ? 0 : 500 * MS;
}

static double retained(void)
{
	static unsigned n;
	CUcontext ctx;

	return launch(k.stream, ++n, 5 * MS) && retain(&ctx, 0) == 0 && release(0) == 0 ? 5 * MS
											: 0;
}

static double green(void)
{
	CUresult (*make)(CUgreenCtx *, void *, CUdevice, unsigned) =
		needed(cuda, "cuGreenCtxCreate");
	CUresult (*end_it)(CUgreenCtx) = needed(cuda, "cuGreenCtxDestroy");
	static unsigned n;
	CUgreenCtx g;

	return make && end_it && launch(k.stream, ++n, 5 * MS) && make(&g, &n, 0, 1) == 0 &&
			       end_it(g) == 0
		       ? 5 * MS
		       : 0;
}

static double refused(void)
{
	static CUcontext ctx;
	static unsigned n;
	CUmodule module;

	if (!ctx && (retain(&ctx, 0) || set_current(ctx) || load(&module, work_ptx) ||
		     function(&k.work, module, "work") || create_stream(&k.stream, 1)))
		return 0;
	return launch(k.stream, ++n, 5 * MS) && destroy(ctx) != 0 ? 5 * MS : 0;
}

static double kernel(void)
{
	return launch(k.stream, 1, 5 * MS) ? 5 * MS : 0;
}

/* Captures of which nothing that this program does is a reason to fail. */
static void *capturing(void *ctx)
{
	static unsigned failed[2];
	CUgraph before = NULL;
	CUstream s;

	if (set_current(ctx) || create_stream(&s, 1))
		return NULL;
	if (again && (begin(s, 0) || end(s, &before)))
		return NULL;
	for (; now_s() < until; failed[1]++) {
		CUgraph graph = NULL;

		if (again ? again(s, 0, before, NULL, NULL) : begin(s, 0)) {
			failed[0]++;
			continue;
		}
		usleep(3000);
		if (!launch(s, 3, MS) || end(s, &graph))
			failed[0]++;
		if (graph && !again)
			destroy_graph(graph);
		usleep(2000);
	}
	return failed;
}

static const struct {
	const char *name;
	double (*step)(void);
	int once;
} hows[] = {{"destroyed", destroyed, 0}, {"brief", brief, 0},       {"threads", threads, 1},
	    {"polled", polled, 0},       {"contexts", contexts, 0}, {"many", many, 0},
	    {"captured", captured, 0},   {"spins", spins, 0},       {"early", early, 0},
	    {"captures", kernel, 0},     {"recaptures", kernel, 0}, {"later", kernel, 0},
	    {"retained", retained, 0},   {"refused", refused, 0},   {"green", green, 0}};

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", ""), *how = opt(argc, argv, "--how", "");
	void *result = NULL;
	double began, done = 0, more, secs = atof(opt(argc, argv, "--secs", "3"));
	double (*step)(void) = NULL;
	size_t in_use = 0;
	unsigned steps = 0;
	int once = 0, failed = kernels_open(&k, dir),
	    watched = strstr(how, "captures") || strcmp(how, "later") == 0;
	unsigned none[2] = {0};
	CUcontext ctx;
	pthread_t t;

	for (unsigned i = 0; i < sizeof hows / sizeof *hows; i++) {
		if (strcmp(how, hows[i].name) == 0) {
			step = hows[i].step;
			once = hows[i].once;
		}
	}
	if (failed || !step)
		return failed ? failed : 2;
	cuda = library(dir, "libcuda.so.1");
	create = needed(cuda, "cuCtxCreate_v2");
	set_current = needed(cuda, "cuCtxSetCurrent");
	get_current = needed(cuda, "cuCtxGetCurrent");
	wait_for_all = needed(cuda, "cuCtxSynchronize");
	retain = needed(cuda, "cuDevicePrimaryCtxRetain");
	release = needed(cuda, "cuDevicePrimaryCtxRelease_v2");
	destroy = needed(cuda, "cuCtxDestroy_v2");
	create_stream = needed(cuda, "cuStreamCreate");
	destroy_stream = needed(cuda, "cuStreamDestroy_v2");
	alloc_host = needed(cuda, "cuMemHostAlloc");
	query = needed(cuda, "cuStreamQuery");
	load = needed(cuda, "cuModuleLoadData");
	function = needed(cuda, "cuModuleGetFunction");
	begin = needed(cuda,
		       strcmp(how, "later") ? "cuStreamBeginCapture_v2" : "cuStreamBeginLater");
	if (strcmp(how, "recaptures") == 0)
		again = needed(cuda, "cuStreamBeginRecaptureToGraph");
	end = needed(cuda, "cuStreamEndCapture");
	end_of_thread = needed(cuda, "cuStreamEndCapture_ptsz");
	destroy_graph = needed(cuda, "cuGraphDestroy");
	if (!create || !retain || !release || !destroy || !set_current || !get_current ||
	    !wait_for_all || !create_stream || !destroy_stream || !alloc_host || !query || !load ||
	    !function || !begin || !end || !end_of_thread || !destroy_graph)
		return 2;
	began = now_s();
	until = began + secs;
	if (watched && (get_current(&ctx) || pthread_create(&t, NULL, capturing, ctx)))
		return 3;
	do {
		more = step();
		if (more == 0)
			return 4;
		done += more;
		if (++steps == 20)
			in_use = mallinfo2().uordblks;
	} while (!once && now_s() < until);
	if (watched)
		pthread_join(t, &result);
	/* What is in the one context, or in the last: little beside the rest. */
	if (wait_for_all())
		return 5;
	printf("{\"part\":%.4f,\"kept_kib\":%ld,\"captures\":%u,\"failed\":%u}\n",
	       done * NS_PER_UNIT / ((now_s() - began) * 1e9),
	       steps > 20 ? ((long)mallinfo2().uordblks - (long)in_use) / 1024 : 0,
	       result ? ((unsigned *)result)[1] : none[1],
	       result ? ((unsigned *)result)[0] : none[0]);
	return 0;
}
