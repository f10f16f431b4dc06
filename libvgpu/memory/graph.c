/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - memory that graphs allocate while they run. The driver gives each allocation node its
 * addresses when the node is made. Nodes that never hold memory together can have the same
 * addresses. A graph takes memory once for each address, so it is charged for the union of the
 * address ranges of its nodes. A launch is refused if that does not fit. Afterwards the charge is
 * the memory that the card's graph pool has reserved.
 */
#include <stdlib.h>
#include <string.h>

#include "../base/table.h"
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "graph.h"
#include "pool.h"
#include "take.h"

/* The card's memory is mapped in pages of this many bytes. */
#define PAGE (2ull << 20)

/* For each card: executable graph -> bytes that it allocates there. */
static struct vgpu_table execs[VGPU_MAX_CARDS] = {[0 ... VGPU_MAX_CARDS - 1] = VGPU_TABLE_INIT};
static struct {
	CUdevice dev;
	uint64_t charged;  /* on our slot */
	uint64_t starting; /* of graphs between being announced and being seen in the pool */
	uint64_t launched; /* of all graphs launched since the last trim */
	uint64_t trims;
} graphs[VGPU_MAX_CARDS];
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

/* The address range of an allocation node, in whole pages. */
struct range {
	uint64_t begin, end;
	int card;
};

/* A graph, its child graphs and theirs, and the ranges that they allocate. */
struct walk {
	CUgraph *graph;
	struct range *range;
	size_t graphs, ranges;
};

/* The list with room for one more entry than n; NULL: there is no memory, the list stays. */
static void *one_more(void *list, size_t n, size_t size)
{
	return n & (n - 1) ? list : realloc(list, (n ? 2 * n : 1) * size);
}

static bool add_graph(struct walk *w, CUgraph graph)
{
	CUgraph *more = one_more(w->graph, w->graphs, sizeof *more);

	if (!more)
		return false;
	w->graph = more;
	w->graph[w->graphs++] = graph;
	return true;
}

static bool add_range(struct walk *w, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	const CUmemLocation *on = &p->poolProps.location;
	struct range *more;
	int card;

	if (on->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	card = vgpu_card_of_device(on->id);
	if (card < 0)
		return !vgpu_not_granted(on->id);
	more = one_more(w->range, w->ranges, sizeof *more);
	if (!more || vgpu_absurd(p->bytesize) || p->dptr > UINT64_MAX / 2)
		return false;
	w->range = more;
	w->range[w->ranges++] =
		(struct range){p->dptr / PAGE * PAGE,
			       (p->dptr + p->bytesize + PAGE - 1) / PAGE * PAGE, card};
	__atomic_store_n(&graphs[card].dev, on->id, __ATOMIC_RELAXED);
	return true;
}

static bool add_node(struct walk *w, CUgraphNode node)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraph child;
	int type;

	if (vgpu_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return false;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH)
		return vgpu_real.cuGraphChildGraphNodeGetGraph &&
		       vgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS &&
		       add_graph(w, child);
	return type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	       (vgpu_real.cuGraphMemAllocNodeGetParams &&
		vgpu_real.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS &&
		add_range(w, &params));
}

static bool add_nodes(struct walk *w, CUgraph graph)
{
	CUgraphNode *nodes;
	size_t n = 0;
	bool known;

	if (vgpu_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
		return false;
	nodes = calloc(n + 1, sizeof *nodes);
	known = nodes && (!n || vgpu_real.cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
	for (size_t i = 0; i < n && known; i++)
		known = add_node(w, nodes[i]);
	free(nodes);
	return known;
}

static int by_address(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Bytes that the graph allocates on each card. False: the driver does not say. */
static bool graph_bytes(CUgraph graph, uint64_t bytes[VGPU_MAX_CARDS])
{
	uint64_t end[VGPU_MAX_CARDS] = {0}; /* of the ranges of each card so far */
	struct walk w = {.graphs = 0};
	bool known;

	memset(bytes, 0, VGPU_MAX_CARDS * sizeof *bytes);
	if (!vgpu_real.cuGraphGetNodes || !vgpu_real.cuGraphNodeGetType)
		return true; /* a driver without allocation nodes */
	known = add_graph(&w, graph);
	for (size_t i = 0; i < w.graphs && known; i++)
		known = add_nodes(&w, w.graph[i]);
	if (w.ranges)
		qsort(w.range, w.ranges, sizeof *w.range, by_address);
	for (size_t i = 0; i < w.ranges; i++) {
		const struct range *r = &w.range[i];
		uint64_t begin = r->begin > end[r->card] ? r->begin : end[r->card];

		if (r->end <= begin)
			continue;
		bytes[r->card] += r->end - begin;
		end[r->card] = r->end;
	}
	free(w.graph);
	free(w.range);
	return known;
}

/* What the pool of graphs on a card has from the card, and what of that is in use. */
static bool ask_pool(CUdevice dev, uint64_t *reserved, uint64_t *used)
{
	return vgpu_real.cuDeviceGetGraphMemAttribute &&
	       vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						      reserved) == CUDA_SUCCESS &&
	       vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
						      used) == CUDA_SUCCESS;
}

/* Brings the charge to what the pool holds now, and takes back what was announced for it,
 * in one step. */
static void settle(int card, CUdevice dev, uint64_t announced)
{
	uint64_t reserved, used;

	pthread_mutex_lock(&graphs_lock);
	if (!ask_pool(dev, &reserved, &used))
		reserved = graphs[card].charged;
	vgpu_charge_moves(card, graphs[card].charged + announced, reserved);
	graphs[card].charged = reserved;
	pthread_mutex_unlock(&graphs_lock);
}

void vgpu_graphs_settle(int card, CUdevice dev)
{
	if (__atomic_load_n(&execs[card].count, __ATOMIC_RELAXED))
		settle(card, dev, 0);
}

/* A graph is about to be launched: bytes that the pool may take from the card for it.
 * Memory that nobody uses goes first, less what graphs of other threads are about to use.
 * And all graphs that were launched since the last trim hold no more than their sum, however
 * often they run. */
static uint64_t starts(int card, CUdevice dev, const struct vgpu_item *exec)
{
	uint64_t reserved, used, busy, more = exec->size, all;

	pthread_mutex_lock(&graphs_lock);
	busy = graphs[card].starting;
	graphs[card].starting += exec->size;
	if (exec->other != graphs[card].trims + 1)
		graphs[card].launched += exec->size;
	all = graphs[card].launched;
	if (ask_pool(dev, &reserved, &used)) {
		if (used <= all && all <= reserved)
			more = 0;
		busy += used;
		if (reserved > busy)
			more = more > reserved - busy ? more - (reserved - busy) : 0;
	}
	pthread_mutex_unlock(&graphs_lock);
	return (more + VGPU_POOL_STEP - 1) / VGPU_POOL_STEP * VGPU_POOL_STEP;
}

/* It was, or (ran: false) it was not. */
static void started(int card, struct vgpu_item *exec, bool ran)
{
	struct vgpu_item was;

	pthread_mutex_lock(&graphs_lock);
	graphs[card].starting -= exec->size;
	if (exec->other != graphs[card].trims + 1 && ran) {
		exec->other = graphs[card].trims + 1;
		if (vgpu_table_take(&execs[card], exec->key, &was))
			vgpu_table_put(&execs[card], exec);
	} else if (exec->other != graphs[card].trims + 1) {
		graphs[card].launched -=
			exec->size < graphs[card].launched ? exec->size : graphs[card].launched;
	}
	pthread_mutex_unlock(&graphs_lock);
}

/* After a trim: what is not in use is the card's again. */
static void trimmed(int card, CUdevice dev)
{
	uint64_t reserved, used;

	pthread_mutex_lock(&graphs_lock);
	graphs[card].trims++;
	if (ask_pool(dev, &reserved, &used))
		graphs[card].launched = used + graphs[card].starting;
	pthread_mutex_unlock(&graphs_lock);
	settle(card, dev, 0);
}

/* A graph that is being launched, on one of its cards. */
struct launch {
	struct vgpu_item exec;
	uint64_t bytes; /* charged before the pool shows them */
};

/* Charges what the pool may take from the card; 0 or -ENOMEM. */
static int take(struct launch *l)
{
	int card = l->exec.card, r;
	CUdevice dev = __atomic_load_n(&graphs[card].dev, __ATOMIC_RELAXED);

	vgpu_mem_begin();
	settle(card, dev, 0);
	l->bytes = starts(card, dev, &l->exec);
	r = vgpu_mem_take(card, l->bytes);
	if (r) {
		started(card, &l->exec, false);
		if (vgpu_real.cuDeviceGraphMemTrim && !vgpu_capturing()) {
			vgpu_real.cuDeviceGraphMemTrim(dev);
			trimmed(card, dev);
		}
		l->bytes = starts(card, dev, &l->exec);
		r = vgpu_mem_take(card, l->bytes);
	}
	if (r) {
		started(card, &l->exec, false);
		vgpu_mem_end();
	}
	return r;
}

/* After the launch, or if there was none: the charge becomes the pool's memory. */
static void launched(struct launch *l, bool ran)
{
	int card = l->exec.card;

	settle(card, __atomic_load_n(&graphs[card].dev, __ATOMIC_RELAXED), l->bytes);
	started(card, &l->exec, ran);
	vgpu_mem_end(); /* of vgpu_mem_take */
	vgpu_mem_end();
}

CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream)
{
	struct launch on[VGPU_MAX_CARDS];
	int n = 0, taken = 0;
	CUresult r;

	for (uint32_t card = 0; card < vgpu_state.ncards; card++)
		n += __atomic_load_n(&execs[card].count, __ATOMIC_RELAXED) &&
		     vgpu_table_get(&execs[card], (uint64_t)(uintptr_t)graph, &on[n].exec);
	while (taken < n && take(&on[taken]) == 0)
		taken++;
	r = taken == n ? real(graph, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < taken; i++)
		launched(&on[i], r == CUDA_SUCCESS);
	return taken == n ? r : vgpu_oom(on[taken].exec.card, on[taken].bytes);
}

void vgpu_graph_forget(CUgraphExec graph)
{
	struct vgpu_item item;

	for (int card = 0; card < VGPU_MAX_CARDS; card++)
		if (__atomic_load_n(&execs[card].count, __ATOMIC_RELAXED))
			vgpu_table_take(&execs[card], (uint64_t)(uintptr_t)graph, &item);
}

/* A graph that cannot be charged is not given to a job that has a limit. */
static CUresult refuse(CUgraphExec *exec)
{
	for (uint32_t card = 0; card < vgpu_state.ncards; card++)
		if (vgpu_limit((int)card)) {
			vgpu_graph_forget(*exec);
			vgpu_real.cuGraphExecDestroy(*exec);
			return vgpu_oom((int)card, 0);
		}
	return CUDA_SUCCESS;
}

static CUresult instantiated(CUresult r, CUgraphExec *exec, CUgraph graph)
{
	uint64_t bytes[VGPU_MAX_CARDS];
	bool known;

	if (r != CUDA_SUCCESS || !exec || !vgpu_state.grant)
		return r;
	/* One of this handle ended with its context. */
	vgpu_graph_forget(*exec);
	known = graph_bytes(graph, bytes);
	for (int card = 0; card < VGPU_MAX_CARDS && known; card++) {
		struct vgpu_item item = {.key = (uint64_t)(uintptr_t)*exec,
					 .size = bytes[card],
					 .card = card};

		known = !item.size || vgpu_table_put(&execs[card], &item);
	}
	return known ? r : refuse(exec);
}

#define INSTANTIATE(name, params, args)                                \
	CUresult name params                                           \
	{                                                              \
		VGPU_NEED_CUDA(name);                                  \
		return instantiated(vgpu_real.name args, exec, graph); \
	}

INSTANTIATE(cuGraphInstantiate,
	    (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiate_v2,
	    (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
	    (exec, graph, error, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags,
	    (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, void *params),
	    (exec, graph, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * exec, CUgraph graph, void *params),
	    (exec, graph, params))

void vgpu_graphs_in_child(void)
{
	pthread_mutex_init(&graphs_lock, NULL);
	memset(graphs, 0, sizeof graphs);
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	CUresult r;
	int card;

	VGPU_NEED_CUDA(cuDeviceGraphMemTrim);
	vgpu_mem_begin();
	r = vgpu_real.cuDeviceGraphMemTrim(dev);
	card = vgpu_card_of_device(dev);
	if (r == CUDA_SUCCESS && card >= 0)
		trimmed(card, dev);
	vgpu_mem_end();
	return r;
}
