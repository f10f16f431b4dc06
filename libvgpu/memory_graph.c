/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_graph.c - memory that graphs allocate while they run. The sizes are
 * read when a graph is instantiated; a launch is refused when they do not fit;
 * afterwards the charge is what the card's graph pool has reserved.
 */
#ifdef VGPU_PRELOAD
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

#define MAX_DEPTH 8

static struct vgpu_table execs = VGPU_TABLE_INIT; /* executable graph -> bytes */
static struct {
	uint64_t charged;  /* on our slot */
	uint64_t starting; /* of graphs between being announced and being seen in the pool */
	uint64_t launched; /* of all graphs launched since the last trim */
	uint64_t trims;
} graphs[VGPU_MAX_CARDS];
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t graph_bytes(CUgraph graph, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraphNode *nodes;
	uint64_t sum = 0;
	CUgraph child;
	size_t n = 0;
	int type;

	if (depth > MAX_DEPTH || !vgpu_real.cuGraphGetNodes || !vgpu_real.cuGraphNodeGetType ||
	    vgpu_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS || n == 0)
		return 0;
	nodes = calloc(n, sizeof *nodes);
	if (!nodes || vgpu_real.cuGraphGetNodes(graph, nodes, &n) != CUDA_SUCCESS)
		n = 0;
	for (size_t i = 0; i < n; i++) {
		if (vgpu_real.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		    vgpu_real.cuGraphMemAllocNodeGetParams &&
		    vgpu_real.cuGraphMemAllocNodeGetParams(nodes[i], &params) == CUDA_SUCCESS)
			sum += params.bytesize;
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
			 vgpu_real.cuGraphChildGraphNodeGetGraph &&
			 vgpu_real.cuGraphChildGraphNodeGetGraph(nodes[i], &child) == CUDA_SUCCESS)
			sum += graph_bytes(child, depth + 1);
	}
	free(nodes);
	return sum;
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
	struct vgpu_item item = {.refs = 1};

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
		vgpu_need_cuda();                                      \
		if (!vgpu_real.name)                                   \
			return CUDA_ERROR_NO_DEVICE;                   \
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

	vgpu_need_cuda();
	if (!vgpu_real.cuDeviceGraphMemTrim)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_mem_begin();
	r = vgpu_real.cuDeviceGraphMemTrim(dev);
	card = vgpu_card_of_device(dev);
	if (r == CUDA_SUCCESS && card >= 0)
		trimmed(card, dev);
	vgpu_mem_end();
	return r;
}
#endif
