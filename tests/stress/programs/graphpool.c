/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graphpool.c - memory of graphs and of a fragmented pool under a limit, on any card.
 *
 *   graphpool [CASE...]
 *
 * The limit is 8 GiB for the cases of graphs and 2 GiB for fragments and early. Without a CASE, all cases of
 * graphs run. Each prints a line that starts with PASS, FAIL or SKIP. The exit status is 1 if one
 * failed.
 *
 *   turns3, turns20   3 and 20 times in turn: allocate 3 GiB, set it, free it. Three launches pass.
 *   shrinks           4, 3 and 3 GiB in turn. Three launches pass.
 *   auto              5 GiB that the graph keeps, freed by each launch. Three launches pass.
 *   upload            20 GiB that the graph keeps, taken when it is instantiated. That is refused.
 *   kept              3 times 3 GiB at once. The launch is refused.
 *   late              3 times 3 GiB with frees. Edges put them in turn after the allocation nodes
 *                     have their addresses. The launch is refused.
 *   nested            as turns3, each turn in a child graph of its own. The launch is refused.
 *   deep              20 GiB in a child graph at depth 20. The launch is refused.
 *   cards             5 GiB on each of two cards. The launch passes, and is refused while the second
 *                     card has 5 GiB of other memory.
 *   trimmed           A thread launches a graph of 5 GiB that the card's graph pool already has. Before
 *                     the driver starts the launch, another thread trims the pool, and then allocates
 *                     memory up to the limit. The launch passes, and the card has at most 8 GiB in use.
 *                     For the simulated card.
 *   crowded           as trimmed, but libvgpu trims the pool: the other thread launches a second graph
 *                     of 5 GiB, which is refused.
 *   fragments         A pool is full of pieces of 1 MiB, and every second one is freed. 256 MiB are
 *                     refused, after a few calls of the driver, and the pool is within the limit.
 *   early             as fragments. Before that, the program frees memory while it has little.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "calls.h"

#define GIB (1ull << 30)
#define MIB (1ull << 20)
#define MOST 20
#define AUTO_FREE 1ull
#define UPLOAD 2ull
#define RELEASE_THRESHOLD 4
#define PIECES 4096
#define PIECE (256 * MIB)    /* of the cases trimmed and crowded */
#define MOST_CALLS 8         /* if no free is to come */
#define MOST_CALLS_UNSURE 24 /* if some free may be */
#define SOON_S 1.0

struct memset_params {
	CUdeviceptr dst;
	size_t pitch;
	unsigned value, size;
	size_t width, height;
};

static CUcontext context;
static int failed;
static unsigned calls; /* of cuMemAllocAsync, if this driver counts them */

__attribute__((format(printf, 3, 4))) static void result(const char *name, const char *verdict,
							 const char *text, ...)
{
	va_list ap;

	va_start(ap, text);
	printf("%s %s: ", verdict, name);
	vprintf(text, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
	failed |= strcmp(verdict, "FAIL") == 0;
}

static unsigned long long reserved_mib(CUdevice dev)
{
	uint64_t bytes = 0;

	TRY(cuDeviceGetGraphMemAttribute, dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
	return bytes / MIB;
}

static CUresult add_alloc(CUgraph graph, CUgraphNode *node, CUgraphNode *after, CUdevice dev,
			  uint64_t bytes, CUdeviceptr *at)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {
		.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}},
		.bytesize = bytes};
	CUresult r = TRY(cuGraphAddMemAllocNode, node, graph, after, (size_t)(after != NULL), &p);

	*at = p.dptr;
	return r;
}

/* Allocates, sets the first MiB, and frees; *last is the node before and then the free. */
static CUresult add_turn(CUgraph graph, CUgraphNode *last, int first, uint64_t bytes)
{
	struct memset_params set = {.value = 1, .size = 1, .width = MIB, .height = 1};
	CUgraphNode alloc, fill;
	CUresult r = add_alloc(graph, &alloc, first ? NULL : last, 0, bytes, &set.dst);

	r = r ? r : TRY(cuGraphAddMemsetNode, &fill, graph, &alloc, (size_t)1, &set, context);
	return r ? r : TRY(cuGraphAddMemFreeNode, last, graph, &fill, (size_t)1, set.dst);
}

/* Launches the graph three times, and ends it. r: the result so far. */
static void launch(const char *name, CUgraph graph, CUresult r, unsigned long long flags,
		   CUresult want)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = flags};
	unsigned long long reserved;
	CUgraphExec exec = NULL;

	if (r) {
		result(name, r == CUDA_ERROR_OUT_OF_MEMORY ? "FAIL" : "SKIP",
		       "the driver does not make this graph, error %d", r);
		TRY(cuGraphDestroy, graph);
		return;
	}
	r = flags & UPLOAD ? TRY(cuGraphInstantiateWithParams, &exec, graph, &params)
			   : TRY(cuGraphInstantiateWithFlags, &exec, graph, flags);
	for (int i = 0; i < 3 && !r; i++) {
		r = TRY(cuGraphLaunch, exec, (CUstream)NULL);
		r = r ? r : TRY(cuCtxSynchronize);
	}
	reserved = reserved_mib(0);
	result(name, r == want && reserved <= 8 * GIB / MIB ? "PASS" : "FAIL",
	       "error %d, want %d; %llu MiB reserved", r, want, reserved);
	if (exec && !(r && flags & UPLOAD))
		TRY(cuGraphExecDestroy, exec);
	TRY(cuGraphDestroy, graph);
	TRY(cuCtxSynchronize);
	TRY(cuDeviceGraphMemTrim, 0);
}

static void turns(const char *name, int n)
{
	static const uint64_t shrinking[] = {4, 3, 3};
	int shrinks = n == 0;
	CUgraphNode last;
	CUgraph graph;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	for (int i = 0; i < (shrinks ? 3 : n) && !r; i++)
		r = add_turn(graph, &last, i == 0, GIB * (shrinks ? shrinking[i] : 3));
	launch(name, graph, r, 0, CUDA_SUCCESS);
}

/* late: each allocation is to follow the free of the one before. */
static void at_once(const char *name, int late)
{
	CUgraphNode alloc[3], gone[3];
	CUdeviceptr at[3];
	CUgraph graph;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	for (int i = 0; i < 3 && !r; i++) {
		r = add_alloc(graph, &alloc[i], NULL, 0, 3 * GIB, &at[i]);
		r = r ? r
		      : TRY(cuGraphAddMemFreeNode, &gone[i], graph, &alloc[i], (size_t)1, at[i]);
	}
	for (int i = 1; i < 3 && late && !r; i++)
		r = TRY(cuGraphAddDependencies, graph, &gone[i - 1], &alloc[i], (size_t)1);
	launch(name, graph, r, 0, CUDA_ERROR_OUT_OF_MEMORY);
}

static void keeps(const char *name, uint64_t bytes, unsigned long long flags, CUresult want)
{
	CUgraphNode alloc;
	CUdeviceptr at;
	CUgraph graph;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	r = r ? r : add_alloc(graph, &alloc, NULL, 0, bytes, &at);
	launch(name, graph, r, flags, want);
}

static void nested(const char *name)
{
	CUgraphNode last, child_last;
	CUgraph graph, child;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	for (int i = 0; i < 3 && !r; i++) {
		r = TRY(cuGraphCreate, &child, 0u);
		r = r ? r : add_turn(child, &child_last, 1, 3 * GIB);
		r = r ? r
		      : TRY(cuGraphAddChildGraphNode, &last, graph, i ? &last : NULL,
			    (size_t)(i > 0), child);
	}
	launch(name, graph, r, 0, CUDA_ERROR_OUT_OF_MEMORY);
}

static void deep(const char *name)
{
	CUgraphNode node;
	CUgraph graph, parent;
	CUdeviceptr at;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	r = r ? r : add_alloc(graph, &node, NULL, 0, 20 * GIB, &at);
	for (int i = 0; i < MOST && !r; i++) {
		r = TRY(cuGraphCreate, &parent, 0u);
		r = r ? r
		      : TRY(cuGraphAddChildGraphNode, &node, parent, (CUgraphNode *)NULL, (size_t)0,
			    graph);
		graph = parent;
	}
	launch(name, graph, r, 0, CUDA_ERROR_OUT_OF_MEMORY);
}

static void cards(const char *name)
{
	CUdeviceptr at, other;
	CUcontext second, top;
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;
	CUresult r, again = 0;
	int n = 0;

	if (TRY(cuDeviceGetCount, &n) || n < 2) {
		result(name, "SKIP", "%d cards, want 2", n);
		return;
	}
	r = TRY(cuCtxCreate_v2, &second, 0u, 1);
	r = r ? r : TRY(cuCtxPopCurrent_v2, &top);
	r = r ? r : TRY(cuGraphCreate, &graph, 0u);
	for (int dev = 0; dev < 2 && !r; dev++)
		r = add_alloc(graph, &node, NULL, dev, 5 * GIB, &at);
	r = r ? r : TRY(cuGraphInstantiateWithFlags, &exec, graph, AUTO_FREE);
	r = r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
	r = r ? r : TRY(cuCtxSynchronize);
	r = r ? r : TRY(cuGraphExecDestroy, exec);
	for (int dev = 0; dev < 2 && !r; dev++)
		r = TRY(cuDeviceGraphMemTrim, dev);
	r = r ? r : TRY(cuCtxPushCurrent_v2, second);
	r = r ? r : TRY(cuMemAlloc_v2, &other, (size_t)(5 * GIB));
	r = r ? r : TRY(cuCtxPopCurrent_v2, &top);
	r = r ? r : TRY(cuGraphInstantiateWithFlags, &exec, graph, AUTO_FREE);
	again = r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
	result(name, !r && again == CUDA_ERROR_OUT_OF_MEMORY ? "PASS" : "FAIL",
	       "errors %d and %d, want 0 and %d", r, again, CUDA_ERROR_OUT_OF_MEMORY);
}

typedef void (*subscriber)(const char *call);

/* The simulated driver calls s as each call begins. Returns false if another driver is loaded. */
static bool subscribe(subscriber s)
{
	void (*simgpu)(subscriber) = (void (*)(subscriber))dlsym(cuda, "simgpu_subscribe");

	if (simgpu)
		simgpu(s);
	return simgpu != NULL;
}

static sem_t in_driver, proceed;
static __thread bool stops; /* in the thread's next launch */

/* Stops the thread after libvgpu has charged the launch, and before the driver starts it. */
static void stop_in_launch(const char *call)
{
	if (!stops || strcmp(call, "cuGraphLaunch") != 0)
		return;
	stops = false;
	sem_post(&in_driver);
	sem_wait(&proceed);
}

static void *launch_and_stop(void *exec)
{
	CUresult r = TRY(cuCtxSetCurrent, context);

	stops = true;
	r = r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
	sem_post(&in_driver); /* libvgpu may have refused the launch */
	return (void *)(intptr_t)r;
}

/* Makes two graphs of 5 GiB each. The card's graph pool then has 5 GiB that no graph uses: the first
 * executable graph was launched, destroyed and made again. */
static CUresult fill_pool(CUgraph graph[2], CUgraphExec exec[2])
{
	CUgraphNode last;
	CUresult r = 0;

	for (int i = 0; i < 2 && !r; i++) {
		r = TRY(cuGraphCreate, &graph[i], 0u);
		r = r ? r : add_turn(graph[i], &last, 1, 5 * GIB);
		r = r ? r : TRY(cuGraphInstantiateWithFlags, &exec[i], graph[i], 0ull);
	}
	r = r ? r : TRY(cuGraphLaunch, exec[0], (CUstream)NULL);
	r = r ? r : TRY(cuCtxSynchronize);
	r = r ? r : TRY(cuGraphExecDestroy, exec[0]);
	return r ? r : TRY(cuGraphInstantiateWithFlags, &exec[0], graph[0], 0ull);
}

static void trimmed(const char *name, bool by_libvgpu)
{
	unsigned long long before_mib, trimmed_mib, card_mib;
	CUresult want = by_libvgpu ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, r, other;
	size_t context_mib = used(), charged_mib, end_mib;
	static CUdeviceptr piece[PIECES];
	CUgraphExec exec[2];
	CUgraph graph[2];
	pthread_t thread;
	void *launched;
	int n = 0;

	if (!subscribe(NULL)) {
		result(name, "SKIP", "only the simulated driver can stop in a launch");
		return;
	}
	r = fill_pool(graph, exec);
	before_mib = reserved_mib(0);
	sem_init(&in_driver, 0, 0);
	sem_init(&proceed, 0, 0);
	subscribe(stop_in_launch);
	if (r || pthread_create(&thread, NULL, launch_and_stop, exec[0])) {
		result(name, "FAIL", "cannot prepare the launch, error %d", r);
		return;
	}
	sem_wait(&in_driver);
	other = by_libvgpu ? TRY(cuGraphLaunch, exec[1], (CUstream)NULL)
			   : TRY(cuDeviceGraphMemTrim, 0);
	trimmed_mib = reserved_mib(0);
	while (n < PIECES && !TRY(cuMemAlloc_v2, &piece[n], (size_t)PIECE))
		n++;
	sem_post(&proceed);
	pthread_join(thread, &launched);
	subscribe(NULL);
	r = (CUresult)(intptr_t)launched;
	card_mib = context_mib + reserved_mib(0) + (unsigned)n * (PIECE / MIB);
	charged_mib = used();

	for (int i = 0; i < n; i++)
		TRY(cuMemFree_v2, piece[i]);
	TRY(cuCtxSynchronize);
	for (int i = 0; i < 2; i++) {
		TRY(cuGraphExecDestroy, exec[i]);
		TRY(cuGraphDestroy, graph[i]);
	}
	TRY(cuDeviceGraphMemTrim, 0);
	end_mib = used();
	result(name,
	       !r && other == want && before_mib == 5 * GIB / MIB && !trimmed_mib && n &&
			       card_mib <= 8 * GIB / MIB && charged_mib == card_mib &&
			       end_mib == context_mib
		       ? "PASS"
		       : "FAIL",
	       "errors %d and %d, want 0 and %d; the pool has %llu MiB, then %llu, want 5120 and "
	       "0; the card has %llu MiB in use, want at most 8192; %zu MiB are charged, want as "
	       "many; at the end %zu, want %zu",
	       r, other, want, before_mib, trimmed_mib, card_mib, charged_mib, end_mib,
	       context_mib);
}

static void count(const char *call)
{
	calls += strcmp(call, "cuMemAllocAsync") == 0;
}

static void fragments(const char *name, int early)
{
	unsigned most = early ? MOST_CALLS_UNSURE : MOST_CALLS;
	uint64_t all = ~0ull, before = 0, after = 0;
	static CUdeviceptr piece[PIECES];
	CUdeviceptr big = 0;
	CUmemoryPool pool;
	CUstream stream;
	double began, took;
	bool counts;
	int n = 0;
	CUresult r = TRY(cuStreamCreate, &stream, 1u);

	r = r ? r : TRY(cuDeviceGetDefaultMemPool, &pool, 0);
	r = r ? r : TRY(cuMemPoolSetAttribute, pool, RELEASE_THRESHOLD, &all);
	r = r || !early ? r : TRY(cuMemAllocAsync, &big, (size_t)MIB, stream);
	r = r || !early ? r : TRY(cuMemFreeAsync, big, stream);
	while (!r && n < PIECES && !(r = TRY(cuMemAllocAsync, &piece[n], (size_t)MIB, stream)))
		n++;
	if (r != CUDA_ERROR_OUT_OF_MEMORY || n < 512) {
		result(name, "FAIL", "%d pieces of 1 MiB, error %d; set a limit of 2 GiB", n, r);
		return;
	}
	r = 0;
	for (int i = 0; i < n && !r; i += 2)
		r = TRY(cuMemFreeAsync, piece[i], stream);
	r = r ? r : TRY(cuStreamSynchronize, stream);
	TRY(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &before);
	counts = subscribe(count);
	began = now_s();
	r = r ? r : TRY(cuMemAllocAsync, &big, (size_t)(256 * MIB), stream);
	took = now_s() - began;
	subscribe(NULL);
	TRY(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &after);
	result(name,
	       r == CUDA_ERROR_OUT_OF_MEMORY && after <= before &&
			       (counts ? calls > 0 && calls <= most : took < SOON_S)
		       ? "PASS"
		       : "FAIL",
	       "error %d, want %d; %u calls of the driver, %.3f s; the pool has %llu MiB after "
	       "%llu",
	       r, CUDA_ERROR_OUT_OF_MEMORY, calls, took, (unsigned long long)(after / MIB),
	       (unsigned long long)(before / MIB));
}

static void one(const char *name)
{
	if (strcmp(name, "turns3") == 0)
		turns(name, 3);
	else if (strcmp(name, "turns20") == 0)
		turns(name, MOST);
	else if (strcmp(name, "shrinks") == 0)
		turns(name, 0);
	else if (strcmp(name, "auto") == 0)
		keeps(name, 5 * GIB, AUTO_FREE, CUDA_SUCCESS);
	else if (strcmp(name, "upload") == 0)
		keeps(name, 20 * GIB, AUTO_FREE | UPLOAD, CUDA_ERROR_OUT_OF_MEMORY);
	else if (strcmp(name, "kept") == 0 || strcmp(name, "late") == 0)
		at_once(name, strcmp(name, "late") == 0);
	else if (strcmp(name, "nested") == 0)
		nested(name);
	else if (strcmp(name, "deep") == 0)
		deep(name);
	else if (strcmp(name, "cards") == 0)
		cards(name);
	else if (strcmp(name, "trimmed") == 0 || strcmp(name, "crowded") == 0)
		trimmed(name, strcmp(name, "crowded") == 0);
	else if (strcmp(name, "fragments") == 0 || strcmp(name, "early") == 0)
		fragments(name, strcmp(name, "early") == 0);
	else
		result(name, "FAIL", "there is no such case");
}

int main(int argc, char **argv)
{
	static const char *const graphs[] = {"turns3", "turns20", "shrinks", "auto",
					     "upload", "kept",    "late",    "nested",
					     "deep",   "cards",   "trimmed", "crowded"};

	cuda = library("", "libcuda.so.1");
	if (!cuda || TRY(cuInit, 0u) || TRY(cuCtxCreate_v2, &context, 0u, 0)) {
		fprintf(stderr, "graphpool: there is no card\n");
		return 3;
	}
	for (int i = 1; i < argc; i++)
		one(argv[i]);
	for (size_t i = 0; i < sizeof graphs / sizeof *graphs && argc == 1; i++)
		one(graphs[i]);
	return failed;
}
