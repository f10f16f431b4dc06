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

/* Child graphs of child graphs are followed so far. */
#define MOST_DEPTH 64

/* The ranges of a graph and its child graphs. */
struct walk {
	struct range *range;
	size_t n;
	struct vgpu_graph_size *on;
};

static bool add_range(struct walk *w, const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	const CUmemLocation *at = &p->poolProps.location;
	struct range *more = w->range;
	int card;

	if (at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	card = vgpu_card_of_device(at->id);
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
	w->on[card].dev = at->id;
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
	CUgraphNode *nodes;
	size_t n = 0;
	bool known;

	if (depth > MOST_DEPTH || vgpu_real.cuGraphGetNodes(graph, NULL, &n) != CUDA_SUCCESS)
		return false;
	nodes = calloc(n + 1, sizeof *nodes);
	known = nodes && (!n || vgpu_real.cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
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

bool vgpu_graph_size(CUgraph graph, struct vgpu_graph_size on[VGPU_MAX_CARDS])
{
	uint64_t end[VGPU_MAX_CARDS] = {0}; /* of the ranges of each card so far */
	struct walk w = {.on = on};
	bool known;

	memset(on, 0, VGPU_MAX_CARDS * sizeof *on);
	if (!vgpu_real.cuGraphGetNodes || !vgpu_real.cuGraphNodeGetType)
		return true; /* a driver without allocation nodes */
	known = add_graph(&w, graph, 0);
	if (w.n)
		qsort(w.range, w.n, sizeof *w.range, by_address);
	for (const struct range *r = w.range; r < w.range + w.n; r++) {
		uint64_t begin = r->begin > end[r->card] ? r->begin : end[r->card];

		if (r->end > begin) {
			on[r->card].bytes += r->end - begin;
			end[r->card] = r->end;
		}
	}
	free(w.range);
	return known;
}
