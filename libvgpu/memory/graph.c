/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - memory that graphs allocate while they run. A launch is refused if the memory does not
 * fit. Afterwards the charge is the memory that the card's graph pool has reserved.
 *
 * The driver gives each allocation node its addresses when the node is made. Nodes that never have memory
 * at the same time can have the same addresses. A graph takes memory once for each address, so its size
 * is the union of the address ranges of its nodes, child graphs included.
 */
#include <stdlib.h>

#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"
#include "pool.h"

/* For each card: executable graph -> bytes that it allocates there; other: trims, when it was launched. */
static VGPU_TABLE(execs[VGPU_MAX_CARDS]);
#define NEVER UINT64_MAX
static VGPU_PRIVATE struct on_card {
	CUdevice dev;
	uint64_t charged;  /* on our slot */
	uint64_t starting; /* of graphs between being announced and being seen in the pool */
	uint64_t reused;   /* of these, what is not charged: they use what the pool has */
	uint64_t launched; /* of all graphs launched since the last trim */
	uint64_t trims;
} graphs[VGPU_MAX_CARDS];
static VGPU_PRIVATE pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------- the size of a graph */
/* The card's memory is mapped in pages of this many bytes. */
#define PAGE (2ull << 20)
/* Child graphs of child graphs are followed so far. */
#define MOST_DEPTH 64

/* The address ranges of allocation nodes, in whole pages. */
struct walk {
	struct range {
		uint64_t begin, end;
		int card;
	} *range;
	size_t n;
};

static bool add_range(struct walk *w, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	const CUmemLocation *at = &p->poolProps.location;
	int card = vgpu_card_of_device(at->id);
	struct range *more = w->range;

	if (at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	if (card < 0)
		return !vgpu_not_granted(at->id);
	if (vgpu_absurd(p->bytesize) || p->dptr > UINT64_MAX / 2)
		return false;
	if (!(w->n & (w->n - 1))) /* it is full */
		more = realloc(w->range, (w->n ? 2 * w->n : 1) * sizeof *more);
	if (!more)
		return false;
	w->range = more;
	w->range[w->n++] = (struct range){p->dptr / PAGE * PAGE,
					  (p->dptr + p->bytesize + PAGE - 1) / PAGE * PAGE, card};
	STORE(&graphs[card].dev, at->id);
	return true;
}

static bool add_graph(struct walk *w, CUgraph graph, int depth);

static bool add_node(struct walk *w, CUgraphNode node, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	CUgraph child;
	int type;

	if (vgpu_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
		return false;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH)
		return vgpu_real.cuGraphChildGraphNodeGetGraph &&
		       vgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS &&
		       add_graph(w, child, depth + 1);
	return type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	       (vgpu_real.cuGraphMemAllocNodeGetParams &&
		vgpu_real.cuGraphMemAllocNodeGetParams(node, &params) == CUDA_SUCCESS &&
		add_range(w, &params));
}

static bool add_graph(struct walk *w, CUgraph graph, int depth)
{
	size_t n = 0;

	if (depth > MOST_DEPTH || vgpu_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
		return false;
	CUgraphNode *nodes = calloc(n + 1, sizeof *nodes);
	bool known = nodes && (!n || vgpu_real.cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
	for (size_t i = 0; i < n && known; i++)
		known = add_node(w, nodes[i], depth);
	free(nodes);
	return known;
}

static int by_address(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The bytes on each card. False: the driver does not say, or there is no memory to find out. */
static bool measure(CUgraph graph, uint64_t bytes[VGPU_MAX_CARDS])
{
	uint64_t end[VGPU_MAX_CARDS] = {0}; /* of the ranges of each card so far */
	struct walk w = {.n = 0};

	if (!vgpu_real.cuGraphGetNodes || !vgpu_real.cuGraphNodeGetType)
		return true; /* a driver without allocation nodes */
	bool known = add_graph(&w, graph, 0);
	if (w.n)
		qsort(w.range, w.n, sizeof *w.range, by_address);
	for (const struct range *r = w.range; r < w.range + w.n; r++) {
		uint64_t begin = r->begin > end[r->card] ? r->begin : end[r->card];

		if (r->end > begin) {
			bytes[r->card] += r->end - begin;
			end[r->card] = r->end;
		}
	}
	free(w.range);
	return known;
}

/* -------------------------------------------------------------------------------- launches */
/* What the pool of graphs on a card has from the card, and what of that is in use. */
static bool ask_pool(int card, uint64_t *reserved, uint64_t *used)
{
	CUdevice dev = LOAD(&graphs[card].dev);

	return vgpu_real.cuDeviceGetGraphMemAttribute &&
	       vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
						      reserved) == CUDA_SUCCESS &&
	       vgpu_real.cuDeviceGetGraphMemAttribute(dev, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
						      used) == CUDA_SUCCESS;
}

/* Brings the charge to what the pool holds now, and takes back what was announced for it, in one step.
 * trimmed: what is not in use is the card's again. */
static void settle_locked(int card, uint64_t announced, bool trimmed)
{
	struct on_card *g = &graphs[card];
	uint64_t reserved, used;
	bool known = ask_pool(card, &reserved, &used);
	if (known && trimmed)
		g->launched = used + g->starting;
	g->trims += trimmed;
	if (!known)
		reserved = g->charged;
	/* What graphs were about to use is gone: they take it from the card again. */
	vgpu_charge_moves(card, g->charged + announced, reserved + (trimmed ? g->reused : 0));
	g->charged = reserved;
	if (trimmed)
		g->reused = 0;
}

static void settle(int card, bool trimmed)
{
	VGPU_LOCK(&graphs_lock);
	settle_locked(card, 0, trimmed);
}

void vgpu_graphs_settle(int card, CUdevice dev)
{
	STORE(&graphs[card].dev, dev);
	if (LOAD(&execs[card].count))
		settle(card, false);
}

/* A graph that is being launched, on one of its cards. */
struct launch {
	struct vgpu_item exec;
	uint64_t bytes;  /* charged before the pool shows them */
	uint64_t reused; /* charged, too, if the pool is trimmed before the launch */
	uint64_t trims;  /* of the card when it started */
};

/* The bytes that the pool may take from the card for a graph. Memory that nobody uses goes first, less
 * what graphs of other threads are about to use. And all graphs that were launched since the last trim
 * hold no more than their sum, however often they run. */
static void starts(struct launch *l)
{
	struct on_card *g = &graphs[l->exec.card];
	uint64_t reserved, used, more = l->exec.size, busy;

	VGPU_LOCK(&graphs_lock);
	busy = g->starting;
	g->starting += l->exec.size;
	if (l->exec.other != g->trims)
		g->launched += l->exec.size;
	if (ask_pool(l->exec.card, &reserved, &used)) {
		busy += used;
		if (used <= g->launched && g->launched <= reserved)
			more = 0;
		else if (reserved > busy)
			more = more > reserved - busy ? more - (reserved - busy) : 0;
	}
	l->bytes = vgpu_pool_steps(more);
	l->reused = vgpu_pool_steps(l->exec.size) - l->bytes;
	l->trims = g->trims;
	g->reused += l->reused;
}

/* It was launched, or (ran: false) it was not. The pool's memory is charged now. charged: of bytes. */
static void started(struct launch *l, bool ran, uint64_t charged)
{
	struct on_card *g = &graphs[l->exec.card];
	struct vgpu_item was;

	VGPU_LOCK(&graphs_lock);
	g->starting -= l->exec.size;
	if (l->trims == g->trims)
		g->reused -= l->reused;
	else
		charged += l->reused;
	settle_locked(l->exec.card, charged, false);
	if (l->exec.other != g->trims && ran) {
		l->exec.other = g->trims;
		if (vgpu_table_take(&execs[l->exec.card], l->exec.key, &was))
			vgpu_table_put(&execs[l->exec.card], &l->exec);
	} else if (l->exec.other != g->trims) {
		g->launched -= l->exec.size < g->launched ? l->exec.size : g->launched;
	}
}

/* Charges what the pool may take from the card; 0 or -ENOMEM. */
static int take(struct launch *l)
{
	int card = l->exec.card, r = -1;

	vgpu_mem_begin();
	settle(card, false);
	for (int tries = 0; tries < 2 && r; tries++) {
		if (tries && vgpu_real.cuDeviceGraphMemTrim && !vgpu_capturing()) {
			vgpu_real.cuDeviceGraphMemTrim(LOAD(&graphs[card].dev));
			settle(card, true);
		}
		starts(l);
		r = vgpu_mem_take(card, l->bytes);
		if (r)
			started(l, false, 0);
	}
	vgpu_mem_end();
	return r;
}

CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream)
{
	struct launch on[VGPU_MAX_CARDS];
	int n = 0, taken = 0;

	for (uint32_t card = 0; card < vgpu_state.ncards; card++)
		n += LOAD(&execs[card].count) &&
		     vgpu_table_get(&execs[card], (uintptr_t)graph, &on[n].exec);
	while (taken < n && take(&on[taken]) == 0)
		taken++;
	CUresult r = taken == n ? real(graph, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	/* Also if there was no launch, the charge becomes the pool's memory. */
	for (struct launch *l = on; l < on + taken; l++) {
		started(l, r == CUDA_SUCCESS, l->bytes);
		vgpu_mem_end(); /* of vgpu_mem_take */
	}
	return taken == n ? r : vgpu_oom(on[taken].exec.card, on[taken].bytes);
}

void vgpu_graph_forget(CUgraphExec graph)
{
	struct vgpu_item item;

	for (int card = 0; card < VGPU_MAX_CARDS; card++)
		if (LOAD(&execs[card].count))
			vgpu_table_take(&execs[card], (uintptr_t)graph, &item);
}

static void drop(CUgraphExec exec)
{
	vgpu_graph_forget(exec);
	vgpu_real.cuGraphExecDestroy(exec);
}

/* A graph that cannot be charged is not given to a job that has a limit. */
static CUresult refuse(CUgraphExec *exec)
{
	for (uint32_t card = 0; card < vgpu_state.ncards; card++)
		if (vgpu_limit((int)card)) {
			drop(*exec);
			return vgpu_oom((int)card, 0);
		}
	return CUDA_SUCCESS;
}

static CUresult instantiated(CUresult r, CUgraphExec *exec, CUgraph graph)
{
	uint64_t bytes[VGPU_MAX_CARDS] = {0};

	if (r != CUDA_SUCCESS || !exec || !vgpu_state.grant)
		return r;
	/* One of this handle ended with its context. */
	vgpu_graph_forget(*exec);
	bool known = measure(graph, bytes);
	for (int card = 0; card < VGPU_MAX_CARDS && known; card++) {
		struct vgpu_item item = {.key = (uintptr_t)*exec,
					 .size = bytes[card],
					 .card = card,
					 .other = NEVER};

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

/* An upload takes memory as a launch does, so it is a call of its own. */
#define INSTANTIATE_AND_UPLOAD(name, upload)                                              \
	CUresult name(CUgraphExec *exec, CUgraph graph, void *params)                     \
	{                                                                                 \
		CUDA_GRAPH_INSTANTIATE_PARAMS *p = params;                                \
		bool uploads = p && p->flags & CU_GRAPH_INSTANTIATE_UPLOAD;               \
                                                                                          \
		VGPU_NEED_CUDA(name);                                                     \
		uploads = uploads && vgpu_state.grant && vgpu_real.upload;                \
		if (!uploads)                                                             \
			return instantiated(vgpu_real.name(exec, graph, p), exec, graph); \
		p->flags &= ~CU_GRAPH_INSTANTIATE_UPLOAD;                                 \
		CUresult r = instantiated(vgpu_real.name(exec, graph, p), exec, graph);   \
		p->flags |= CU_GRAPH_INSTANTIATE_UPLOAD;                                  \
		if (r != CUDA_SUCCESS)                                                    \
			return r;                                                         \
		r = vgpu_graph_launch(vgpu_real.upload, *exec, p->hUploadStream);         \
		if (r != CUDA_SUCCESS)                                                    \
			drop(*exec);                                                      \
		return r;                                                                 \
	}
INSTANTIATE_AND_UPLOAD(cuGraphInstantiateWithParams, cuGraphUpload)
INSTANTIATE_AND_UPLOAD(cuGraphInstantiateWithParams_ptsz, cuGraphUpload_ptsz)

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	VGPU_NEED_CUDA(cuDeviceGraphMemTrim);
	vgpu_mem_begin();
	CUresult r = vgpu_real.cuDeviceGraphMemTrim(dev);
	int card = vgpu_card_of_device(dev);
	if (r == CUDA_SUCCESS && card >= 0) {
		STORE(&graphs[card].dev, dev);
		settle(card, true);
	}
	vgpu_mem_end();
	return r;
}
