// SPDX-License-Identifier: Apache-2.0
/*
 * exec.c - graphs ready to be launched, and the memory of graphs: taken at the
 * first launch, kept for later graphs until cuDeviceGraphMemTrim.
 */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct CUgraphExec_st {
	uint32_t magic;
	CUgraph graph;
	uint64_t bytes[SIM_MAX_CARDS]; /* of its allocation nodes */
	bool charged;
};

/* bytes that graphs on a card use, and hold */
static uint64_t mem_used[SIM_MAX_CARDS], mem_reserved[SIM_MAX_CARDS];
static uint64_t mem_used_high[SIM_MAX_CARDS], mem_reserved_high[SIM_MAX_CARDS];

/* Each address has memory once, whichever nodes have it in turn. */
static void add_bytes(CUgraph g, size_t n, unsigned walk, uint64_t *bytes)
{
	for (CUgraphNode x = g->first; x && n; x = x->next, n--) {
		if (x->child)
			add_bytes(x->child, x->child_n, walk, bytes);
		else if (x->owns && x->seen != walk)
			bytes[x->card] += graph_alloc_size(x);
		x->seen = walk;
	}
}

static CUresult take_memory(CUgraphExec x);

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
	CUgraphExec x;

	if (!exec || !graph_ok(graph))
		return CUDA_ERROR_INVALID_VALUE;
	x = calloc(1, sizeof(*x));
	if (!x)
		return CUDA_ERROR_OUT_OF_MEMORY;
	x->magic = MAGIC_EXEC;
	x->graph = graph;
	graph->refs++;
	add_bytes(graph, graph->n, graph_walk(), x->bytes);
	*exec = x;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	(void)flags;
	ENTER(NEED_CTX);
	return drv_leave(instantiate(exec, graph));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			       size_t n)
{
	ENTER(NEED_CTX);
	if (error_node)
		*error_node = NULL;
	if (log && n)
		*log = 0;
	return drv_leave(instantiate(exec, graph));
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			    size_t n)
{
	return cuGraphInstantiate_v2(exec, graph, error_node, log, n);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
				      CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	CUresult rc;

	ENTER(NEED_CTX);
	if (!p)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	rc = instantiate(exec, graph);
	if (!rc && p->flags & 2) /* CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD */
		rc = take_memory(*exec);
	p->hErrNode_out = NULL;
	p->result_out = rc != CUDA_SUCCESS;
	return drv_leave(rc);
}

/* A graph here has one executable: the node is changed for both. */
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
					   const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct work w;
	CUresult rc;

	ENTER(NEED_CTX);
	if (!exec || exec->magic != MAGIC_EXEC || !node || node->type != NODE_KERNEL || !p ||
	    !function_ok(p->func))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	rc = kernel_work(drv_current()->legacy, p->func, p->kernelParams, p->extra, &w);
	if (rc)
		return drv_leave(rc);
	effect_free(node->work.eff);
	node->work = w;
	return drv_leave(CUDA_SUCCESS);
}

static CUresult take_on(uint32_t card, uint64_t bytes)
{
	uint64_t want = mem_used[card] + bytes;
	CUresult rc;

	if (want > mem_reserved[card]) {
		rc = mem_charge(card, want - mem_reserved[card]);
		if (rc)
			return rc;
		mem_reserved[card] = want;
	}
	mem_used[card] = want;
	if (want > mem_used_high[card])
		mem_used_high[card] = want;
	if (mem_reserved[card] > mem_reserved_high[card])
		mem_reserved_high[card] = mem_reserved[card];
	return CUDA_SUCCESS;
}

static CUresult take_memory(CUgraphExec x)
{
	CUresult rc = CUDA_SUCCESS;
	uint32_t card = 0;

	for (; card < SIM_MAX_CARDS && !x->charged && !rc; card++)
		rc = take_on(card, x->bytes[card]);
	x->charged = !rc;
	while (rc && --card > 0)
		mem_used[card - 1] -= x->bytes[card - 1];
	return rc;
}

static CUresult run_nodes(CUgraph g, size_t count, CUstream s)
{
	CUresult rc = CUDA_SUCCESS;

	for (CUgraphNode n = g->first; n && count && !rc; n = n->next, count--) {
		struct work w = n->work;

		if (n->child)
			rc = run_nodes(n->child, n->child_n, s);
		if (!n->runs)
			continue;
		if (w.eff && !(w.eff = effect_copy(n->work.eff)))
			return CUDA_ERROR_OUT_OF_MEMORY;
		rc = stream_submit(s, &w, NULL);
	}
	return rc;
}

static CUresult launch(CUgraphExec x, CUstream handle)
{
	CUstream s = stream_of(handle);
	CUresult rc;

	if (!x || x->magic != MAGIC_EXEC || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	rc = take_memory(x);
	return rc ? rc : run_nodes(x->graph, x->graph->n, s);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(launch(exec, hStream));
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream hStream)
{
	ENTER(NEED_CTX);
	if (!exec || exec->magic != MAGIC_EXEC || !stream_of(hStream))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	return drv_leave(take_memory(exec));
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	ENTER(NEED_INIT);
	if (!exec || exec->magic != MAGIC_EXEC)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (uint32_t card = 0; card < SIM_MAX_CARDS && exec->charged; card++)
		mem_used[card] -= exec->bytes[card];
	graph_free(exec->graph);
	exec->magic = 0;
	free(exec);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	uint32_t card;

	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	card = drv.card[dev];
	mem_uncharge(card, mem_reserved[card] - mem_used[card]);
	mem_reserved[card] = mem_used[card];
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attr, void *value)
{
	uint64_t v[4];
	uint32_t card;

	ENTER(NEED_INIT);
	if (!drv_device_ok(dev))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	if (!value || attr < 0 || attr > 3)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	card = drv.card[dev];
	v[0] = mem_used[card];
	v[1] = mem_used_high[card];
	v[2] = mem_reserved[card];
	v[3] = mem_reserved_high[card];
	memcpy(value, &v[attr], sizeof(v[attr]));
	return drv_leave(CUDA_SUCCESS);
}
