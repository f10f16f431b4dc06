/* SPDX-License-Identifier: Apache-2.0 */
/* graph_size.c - see graph_size.h. */
#include <stdlib.h>
#include <string.h>

#include "../driver/real.h"
#include "../job/cards.h"
#include "account.h"
#include "graph_size.h"

/* The card's memory is mapped in pages of this many bytes. */
#define PAGE (2ull << 20)

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
	struct vgpu_graph_size *on;
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
	const CUmemLocation *at = &p->poolProps.location;
	struct range *more;
	int card;

	if (at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	card = vgpu_card_of_device(at->id);
	if (card < 0)
		return !vgpu_not_granted(at->id);
	if (vgpu_absurd(p->bytesize) || p->dptr > UINT64_MAX / 2)
		return false;
	more = one_more(w->range, w->ranges, sizeof *more);
	if (!more)
		return false;
	w->range = more;
	w->range[w->ranges++] =
		(struct range){p->dptr / PAGE * PAGE,
			       (p->dptr + p->bytesize + PAGE - 1) / PAGE * PAGE, card};
	w->on[card].dev = at->id;
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

bool vgpu_graph_size(CUgraph graph, struct vgpu_graph_size on[VGPU_MAX_CARDS])
{
	uint64_t end[VGPU_MAX_CARDS] = {0}; /* of the ranges of each card so far */
	struct walk w = {.on = on};
	bool known;

	memset(on, 0, VGPU_MAX_CARDS * sizeof *on);
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
		on[r->card].bytes += r->end - begin;
		end[r->card] = r->end;
	}
	free(w.graph);
	free(w.range);
	return known;
}
