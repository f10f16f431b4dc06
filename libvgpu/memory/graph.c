/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - memory that graphs allocate while they run. What a graph holds at
 * once is found when it is instantiated; a launch is refused when that does not fit;
 * afterwards the charge is what the card's graph pool has reserved.
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
#include "lifetimes.h"
#include "pool.h"
#include "take.h"

#define MAX_DEPTH 8

static struct vgpu_table execs = VGPU_TABLE_INIT; /* executable graph -> bytes */
static struct {
	uint64_t charged;  /* on our slot */
	uint64_t starting; /* of graphs between being announced and being seen in the pool */
	uint64_t launched; /* of all graphs launched since the last trim */
	uint64_t trims;
} graphs[VGPU_MAX_CARDS];
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

/* Handles and addresses -> where they are in a list. */
struct place {
	uint64_t key;
	uint32_t index;
};

static int by_key(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->key < y->key ? -1 : x->key > y->key;
}

static const struct place *place_of(const struct place *sorted, size_t n, uint64_t key)
{
	struct place wanted = {.key = key};

	return bsearch(&wanted, sorted, n, sizeof wanted, by_key);
}

static uint64_t handle_key(CUgraphNode node)
{
	return (uint64_t)(uintptr_t)node;
}

/* Edges between the nodes, as indices; NULL: not to be had. */
static struct vgpu_edge *edges_of(CUgraph graph, const CUgraphNode *nodes, size_t n, size_t *count)
{
	struct place *sorted = calloc(n, sizeof *sorted);
	struct vgpu_edge *edge = NULL;
	CUgraphNode *ends = NULL;
	bool known = sorted && vgpu_real.cuGraphGetEdges &&
		     vgpu_real.cuGraphGetEdges(graph, NULL, NULL, count) == CUDA_SUCCESS;
	size_t most = known ? *count : 0;

	ends = calloc(2 * most + 1, sizeof *ends);
	edge = calloc(most + 1, sizeof *edge);
	known = known && ends && edge &&
		(!most ||
		 vgpu_real.cuGraphGetEdges(graph, ends, ends + most, count) == CUDA_SUCCESS) &&
		*count <= most;
	for (size_t i = 0; i < n && known; i++)
		sorted[i] = (struct place){handle_key(nodes[i]), (uint32_t)i};
	if (known)
		qsort(sorted, n, sizeof *sorted, by_key);
	for (size_t i = 0; known && i < *count; i++) {
		const struct place *from = place_of(sorted, n, handle_key(ends[i]));
		const struct place *to = place_of(sorted, n, handle_key(ends[most + i]));

		known = from && to;
		if (known)
			edge[i] = (struct vgpu_edge){from->index, to->index};
	}
	free(sorted);
	free(ends);
	if (!known) {
		free(edge);
		edge = NULL;
	}
	return edge;
}

static uint64_t graph_bytes(CUgraph graph, int depth);

/* What one node allocates; *at: where, 0 where that says nothing. */
static uint64_t node_bytes(CUgraphNode node, int type, int depth, uint64_t *at)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraph child;

	*at = 0;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && vgpu_real.cuGraphChildGraphNodeGetGraph &&
	    vgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
		return graph_bytes(child, depth + 1);
	if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !vgpu_real.cuGraphMemAllocNodeGetParams ||
	    vgpu_real.cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS)
		return 0;
	*at = params.dptr;
	return params.bytesize;
}

/* Allocations of the nodes, and which node frees each. made: room for as many. Returns how
 * many there are; *freed: of them. */
static size_t lives_of(const CUgraphNode *nodes, size_t n, int depth, struct vgpu_life *life,
		       struct place *made, size_t *freed)
{
	size_t lives = 0;
	int type;

	for (size_t i = 0; i < n; i++) {
		struct vgpu_life l = {(uint32_t)i, VGPU_NEVER, 0};

		if (vgpu_real.cuGraphNodeGetType(nodes[i], &type) == CUDA_SUCCESS)
			l.bytes = node_bytes(nodes[i], type, depth, &made[lives].key);
		made[lives].index = (uint32_t)lives;
		life[lives] = l;
		lives += l.bytes != 0;
	}
	qsort(made, lives, sizeof *made, by_key);
	*freed = 0;
	for (size_t i = 0; i < n && lives && vgpu_real.cuGraphMemFreeNodeGetParams; i++) {
		const struct place *p;
		CUdeviceptr at;

		if (vgpu_real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS ||
		    type != CU_GRAPH_NODE_TYPE_MEM_FREE ||
		    vgpu_real.cuGraphMemFreeNodeGetParams(nodes[i], &at) != CUDA_SUCCESS || !at)
			continue;
		p = place_of(made, lives, at);
		if (p) {
			life[p->index].freed = (uint32_t)i;
			(*freed)++;
		}
	}
	return lives;
}

/* What a graph holds at once, at most. */
static uint64_t graph_bytes(CUgraph graph, int depth)
{
	struct vgpu_edge *edge = NULL;
	struct vgpu_life *life;
	struct place *made;
	CUgraphNode *nodes;
	size_t n = 0, lives = 0, freed = 0, edges = 0;
	uint64_t held = 0;

	if (depth > MAX_DEPTH || !vgpu_real.cuGraphGetNodes || !vgpu_real.cuGraphNodeGetType ||
	    vgpu_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS || n == 0)
		return 0;
	nodes = calloc(n, sizeof *nodes);
	life = calloc(n + 1, sizeof *life);
	made = calloc(n + 1, sizeof *made);
	if (nodes && life && made && vgpu_real.cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS)
		lives = lives_of(nodes, n, depth, life, made, &freed);
	if (lives > 1 && freed)
		edge = edges_of(graph, nodes, n, &edges);
	if (edge)
		held = vgpu_held_at_once(life, lives, edge, edges, n);
	for (size_t i = 0; i < lives && !edge; i++)
		held += life[i].bytes;
	free(nodes);
	free(life);
	free(made);
	free(edge);
	return held;
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
	if (__atomic_load_n(&execs.count, __ATOMIC_RELAXED))
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
		if (vgpu_table_take(&execs, exec->key, &was))
			vgpu_table_put(&execs, exec);
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

CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream)
{
	struct vgpu_item item;
	uint64_t bytes;
	CUdevice dev;
	CUresult r;
	int card;

	if (!__atomic_load_n(&execs.count, __ATOMIC_RELAXED) ||
	    !vgpu_table_get(&execs, (uint64_t)(uintptr_t)graph, &item))
		return real(graph, stream);
	card = vgpu_card_current();
	if (card < 0 || vgpu_real.cuCtxGetDevice(&dev) != CUDA_SUCCESS)
		return real(graph, stream);
	vgpu_mem_begin();
	settle(card, dev, 0);
	bytes = starts(card, dev, &item);
	if (vgpu_mem_take(card, bytes)) {
		started(card, &item, false);
		if (vgpu_real.cuDeviceGraphMemTrim && !vgpu_capturing()) {
			vgpu_real.cuDeviceGraphMemTrim(dev);
			trimmed(card, dev);
		}
		bytes = starts(card, dev, &item);
		if (vgpu_mem_take(card, bytes)) {
			started(card, &item, false);
			vgpu_mem_end();
			return vgpu_oom(card, bytes);
		}
	}
	r = real(graph, stream);
	/* From what might be needed to what the pool says. */
	settle(card, dev, bytes);
	started(card, &item, r == CUDA_SUCCESS);
	vgpu_mem_end(); /* of vgpu_mem_take */
	vgpu_mem_end();
	return r;
}

void vgpu_graph_forget(CUgraphExec graph)
{
	struct vgpu_item item;

	if (__atomic_load_n(&execs.count, __ATOMIC_RELAXED))
		vgpu_table_take(&execs, (uint64_t)(uintptr_t)graph, &item);
}

static CUresult instantiated(CUresult r, const CUgraphExec *exec, CUgraph graph)
{
	struct vgpu_item item = {.size = 0};

	if (r != CUDA_SUCCESS || !exec || !vgpu_state.grant)
		return r;
	/* One of this handle ended with its context. */
	vgpu_graph_forget(*exec);
	item.size = graph_bytes(graph, 0);
	item.key = (uint64_t)(uintptr_t)*exec;
	if (item.size)
		vgpu_table_put(&execs, &item);
	return r;
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
