/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_graph.c - memory that graphs allocate while they run. The sizes are
 * read when a graph is instantiated; a launch is refused when they do not fit;
 * afterwards the charge is what the card's graph pool has reserved.
 */
#ifdef VGPU_PRELOAD
#include <stdlib.h>

#include "vgpu.h"

#define MAX_DEPTH 8

static struct vgpu_table execs = VGPU_TABLE_INIT; /* executable graph -> bytes */
static uint64_t charged[VGPU_MAX_CARDS];

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

/* Brings the charge to what the graph pool of a card holds now. */
static void settle(int card, CUdevice dev)
{
	uint64_t reserved = 0, have;

	if (!vgpu_real.cuDeviceGetGraphMemAttribute ||
	    vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						   &reserved) != CUDA_SUCCESS)
		return;
	have = __atomic_exchange_n(&charged[card], reserved, __ATOMIC_SEQ_CST);
	if (reserved > have)
		vgpu_charge_forced(card, reserved - have);
	else
		vgpu_release(card, have - reserved);
}

/* Bytes beyond what the pool has reserved and nobody uses. */
static uint64_t beyond_pool(CUdevice dev, uint64_t bytes)
{
	uint64_t reserved = 0, used = 0;

	if (!vgpu_real.cuDeviceGetGraphMemAttribute ||
	    vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						   &reserved) != CUDA_SUCCESS ||
	    vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
						   &used) != CUDA_SUCCESS ||
	    reserved < used)
		return bytes;
	if (bytes <= reserved - used)
		return 0;
	bytes -= reserved - used;
	return (bytes + VGPU_POOL_STEP - 1) / VGPU_POOL_STEP * VGPU_POOL_STEP;
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
	/* Memory that finished graphs left in the pool is used first. */
	vgpu_mem_begin();
	settle(card, dev);
	vgpu_mem_end();
	bytes = beyond_pool(dev, item.size);
	if (vgpu_mem_take(card, bytes)) {
		if (vgpu_real.cuDeviceGraphMemTrim && !vgpu_capturing()) {
			vgpu_real.cuDeviceGraphMemTrim(dev);
			settle(card, dev);
		}
		bytes = beyond_pool(dev, item.size);
		if (vgpu_mem_take(card, bytes))
			return vgpu_oom(card, bytes);
	}
	r = real(graph, stream);
	/* From what might be needed to what the pool says. */
	vgpu_release(card, bytes);
	settle(card, dev);
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
		settle(card, dev);
	vgpu_mem_end();
	return r;
}
#endif
