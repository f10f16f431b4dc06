// SPDX-License-Identifier: Apache-2.0
/* graph.c - making graphs, by hand and for captures. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_new(void)
{
	CUgraph g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->magic = MAGIC_GRAPH;
	g->refs = 1;
	g->last = &g->first;
	return g;
}

void graph_free(CUgraph g)
{
	if (--g->refs)
		return;
	while (g->first) {
		CUgraphNode n = g->first;
		struct block *b = n->owns ? block_find(n->alloc.dptr) : NULL;

		g->first = n->next;
		effect_free(n->work.eff);
		if (n->child)
			graph_free(n->child);
		if (b && b->va == n->alloc.dptr)
			block_remove(b);
		free(n->from);
		free(n);
	}
	g->magic = 0;
	free(g);
}

static void depend(CUgraph g, CUgraphNode n, bool by_hand)
{
	const CUgraphNode *deps = by_hand ? g->deps : &g->newest;
	size_t count = by_hand ? g->ndeps : g->newest != NULL;

	n->from = count ? calloc(count, sizeof(*n->from)) : NULL;
	for (size_t i = 0; n->from && i < count; i++)
		n->from[n->nfrom++] = deps[i];
}

/* A captured node has no out: the driver gives it to no program. */
static CUgraphNode node_new(CUgraph g, int type, CUgraphNode *out)
{
	CUgraphNode n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	depend(g, n, out);
	n->type = type;
	g->newest = n;
	*g->last = n;
	g->last = &n->next;
	g->n++;
	if (out)
		*out = n;
	return n;
}

static int type_of_work(const struct work *w)
{
	switch (w->kind) {
	case SIM_KERNEL:
		return NODE_KERNEL;
	case SIM_COPY:
		return w->eff && w->eff->kind == EFF_FILL ? NODE_MEMSET : NODE_MEMCPY;
	case SIM_OWNER:
		return NODE_HOST;
	case SIM_WAIT:
		return NODE_WAIT_EVENT;
	case SIM_MARK:
		return NODE_EMPTY;
	}
	return NODE_EMPTY;
}

CUresult graph_add(CUgraph g, const struct work *w, int type, CUgraphNode *node)
{
	struct effect *e = w->eff ? effect_copy(w->eff) : NULL;
	CUgraphNode n;

	if (w->eff && !e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n = node_new(g, type < 0 ? type_of_work(w) : type, node);
	if (!n) {
		effect_free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	n->work = *w;
	n->work.eff = e;
	n->runs = true;
	return CUDA_SUCCESS;
}

unsigned graph_walk(void)
{
	static unsigned walks;

	return ++walks;
}

static void mark_before(CUgraphNode n, unsigned walk)
{
	if (n->seen == walk)
		return;
	n->seen = walk;
	for (size_t i = 0; i < n->nfrom; i++)
		mark_before(n->from[i], walk);
}

/* Where the next allocation of a graph can have the addresses of earlier ones: those are freed by
 * nodes that it depends on. 0: nowhere. A card was seen to do so (580, H100). */
static uint64_t reusable(CUgraph g, bool by_hand, uint32_t card, uint64_t bytes)
{
	const CUgraphNode *deps = by_hand ? g->deps : &g->newest;
	size_t count = by_hand ? g->ndeps : g->newest != NULL;
	unsigned walk = graph_walk();

	for (size_t i = 0; i < count; i++)
		mark_before(deps[i], walk);
	for (CUgraphNode r = g->first; r; r = r->next) {
		uint64_t at = r->alloc.dptr, end = at + graph_alloc_size(r);

		if (!r->owns || r->card != card)
			continue;
		for (CUgraphNode n = r; n;
		     n = n->next) /* in the order of creation, not of addresses */
			if (n->type == NODE_ALLOC && n->alloc.dptr < at + bytes &&
			    at < n->alloc.dptr + graph_alloc_size(n) &&
			    !(n->freed && n->freed->seen == walk)) {
				at = n->alloc.dptr + graph_alloc_size(n);
				n = r;
			}
		if (at + bytes <= end)
			return at;
	}
	return 0;
}

/* The address exists from now on; memory lies behind it from the first launch. */
CUresult graph_add_alloc(CUgraph g, uint32_t card, uint64_t size, CUdeviceptr *out,
			 CUgraphNode *node)
{
	uint64_t bytes = (size + DRV_PAGE - 1) / DRV_PAGE * DRV_PAGE, at;
	struct block b = {.size = bytes, .kind = BLOCK_IPC, .card = card};
	CUgraphNode n;

	if (!size || !out)
		return CUDA_ERROR_INVALID_VALUE;
	at = reusable(g, node, card, bytes);
	b.va = at ? at : va_take(bytes, DRV_PAGE);
	if (!b.va || (!at && !block_add(&b)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	n = node_new(g, NODE_ALLOC, node);
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->alloc.bytesize = size;
	n->alloc.dptr = b.va;
	n->card = card;
	n->owns = !at;
	*out = b.va;
	return CUDA_SUCCESS;
}

/* It frees the last allocation that the graph has there; one of another graph, if it has none. */
CUresult graph_add_free(CUgraph g, CUdeviceptr dptr, CUgraphNode *node)
{
	CUgraphNode n = block_find(dptr) ? node_new(g, NODE_FREE, node) : NULL, freed = NULL;

	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	n->alloc.dptr = dptr;
	for (CUgraphNode x = g->first; x; x = x->next)
		if (x->type == NODE_ALLOC && x->alloc.dptr == dptr)
			freed = x;
	if (freed)
		freed->freed = n;
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	ENTER(NEED_INIT);
	if (!graph || flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*graph = graph_new();
	return drv_leave(*graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	ENTER(NEED_INIT);
	if (!graph_ok(graph))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	/* CUDA does not permit this during a capture into the graph. */
	for (struct capture *c = drv.captures; c; c = c->next)
		c->invalid |= c->graph == graph;
	graph_free(graph);
	return drv_leave(CUDA_SUCCESS);
}

static CUresult enter_node(const char *call, CUgraphNode *node, CUgraph g, const CUgraphNode *deps,
			   size_t n)
{
	CUresult rc = drv_enter(call, NEED_CTX);

	if (rc)
		return rc;
	if (!node || !graph_ok(g) || (n && !deps))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	g->deps = deps;
	g->ndeps = n;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
				 size_t n, const CUDA_KERNEL_NODE_PARAMS *p)
{
	CUresult rc = enter_node(__func__, node, graph, deps, n);
	CUfunction f;
	struct work w;

	if (rc)
		return rc;
	f = !p ? NULL : p->func ? p->func : (CUfunction)p->kern;
	if (!function_ok(f) || (f->nparams && !p->kernelParams && !p->extra))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	rc = module_into_context(f->module);
	if (!rc)
		rc = kernel_work(drv_current()->legacy, f, p->kernelParams, p->extra, &w);
	if (rc)
		return drv_leave(rc);
	rc = graph_add(graph, &w, NODE_KERNEL, node);
	effect_free(w.eff);
	if (!rc)
		(*node)->kernel = *p;
	return drv_leave(rc);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
			    const CUDA_HOST_NODE_PARAMS *p)
{
	struct work w = {.kind = SIM_OWNER, .flags = SIM_OP_URGENT};
	struct effect e = {.kind = EFF_CALL};
	CUresult rc = enter_node(__func__, node, graph, deps, n);

	if (rc)
		return rc;
	if (!p || !p->fn)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	e.fn = p->fn;
	e.data = p->userData;
	w.eff = &e;
	return drv_leave(graph_add(graph, &w, NODE_HOST, node));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
			      const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
	struct work w = {.kind = SIM_COPY, .flags = SIM_OP_URGENT, .ns = 2000};
	struct effect e = {.kind = EFF_FILL};
	CUresult rc = enter_node(__func__, node, graph, deps, n);

	if (rc)
		return rc;
	if (!p || !drv_ctx_valid(ctx) || !block_find(p->dst) || p->height != 1)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	e.dst = p->dst;
	e.value = p->value;
	e.width = p->elementSize;
	e.n = p->width;
	w.eff = &e;
	return drv_leave(graph_add(graph, &w, NODE_MEMSET, node));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n)
{
	CUresult rc = enter_node(__func__, node, graph, deps, n);

	if (rc)
		return rc;
	return drv_leave(node_new(graph, NODE_EMPTY, node) ? CUDA_SUCCESS
							   : CUDA_ERROR_OUT_OF_MEMORY);
}

/* The child is taken as it is now; nodes that it gets later do not count. */
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
				  size_t n, CUgraph child)
{
	CUresult rc = enter_node(__func__, node, graph, deps, n);
	CUgraphNode x;

	if (rc)
		return rc;
	if (!graph_ok(child) || child == graph)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	x = node_new(graph, NODE_GRAPH, node);
	if (!x)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	x->child = child;
	x->child_n = child->n;
	child->refs++;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	ENTER(NEED_INIT);
	if (!node || !graph || node->type != NODE_GRAPH)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*graph = node->child;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
				CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	CUresult rc = enter_node(__func__, node, graph, deps, n);

	if (rc)
		return rc;
	if (!p || p->poolProps.location.type != 1 || !drv_device_ok(p->poolProps.location.id))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	rc = graph_add_alloc(graph, drv.card[p->poolProps.location.id], p->bytesize, &p->dptr,
			     node);
	if (!rc)
		(*node)->alloc = *p;
	return drv_leave(rc);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
			       CUdeviceptr dptr)
{
	CUresult rc = enter_node(__func__, node, graph, deps, n);

	return rc ? rc : drv_leave(graph_add_free(graph, dptr, node));
}

/* The new edges lead to later nodes: nodes keep the order of their creation. */
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				size_t n)
{
	ENTER(NEED_INIT);
	if (!graph_ok(graph) || (n && (!from || !to)))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < n; i++) {
		CUgraphNode *more, x = from[i];

		while (x && x != to[i])
			x = x->next;
		more = x ? realloc(x->from, (x->nfrom + 1) * sizeof(*more)) : NULL;
		if (!more)
			return drv_leave(CUDA_ERROR_INVALID_VALUE);
		x->from = more;
		x->from[x->nfrom++] = from[i];
	}
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	size_t i = 0;

	ENTER(NEED_INIT);
	if (!graph_ok(graph) || !n)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (CUgraphNode x = graph->first; nodes && x && i < *n; x = x->next)
		nodes[i++] = x;
	*n = nodes ? i : graph->n;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n)
{
	size_t all = 0;

	ENTER(NEED_INIT);
	if (!graph_ok(graph) || !n || !from != !to)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (CUgraphNode x = graph->first; x; x = x->next)
		for (size_t i = 0; i < x->nfrom; i++, all++)
			if (from && all < *n) {
				from[all] = x->from[i];
				to[all] = x;
			}
	*n = from && all > *n ? *n : all;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	ENTER(NEED_INIT);
	if (!node || !type)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*type = node->type;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p)
{
	ENTER(NEED_INIT);
	if (!node || !p || node->type != NODE_KERNEL)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*p = node->kernel;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	ENTER(NEED_INIT);
	if (!node || !p || node->type != NODE_ALLOC)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*p = node->alloc;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *dptr)
{
	ENTER(NEED_INIT);
	if (!node || !dptr || node->type != NODE_FREE)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*dptr = node->alloc.dptr;
	return drv_leave(CUDA_SUCCESS);
}
