/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.h - graphs: lists of work that is launched as one.
 *
 * Nodes run one after the other in the order in which they were added, which
 * respects all dependencies, since a node can only depend on earlier ones.
 */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "local.h"

/* as CUgraphNodeType numbers them */
enum {
	NODE_KERNEL,
	NODE_MEMCPY,
	NODE_MEMSET,
	NODE_HOST,
	NODE_GRAPH,
	NODE_EMPTY,
	NODE_WAIT_EVENT,
	NODE_ALLOC = 10,
	NODE_FREE,
};

struct CUgraphNode_st {
	int type;
	struct work work;
	bool runs; /* it puts work into the stream */
	CUDA_KERNEL_NODE_PARAMS kernel;
	CUDA_MEM_ALLOC_NODE_PARAMS alloc;
	uint32_t card;     /* of an allocation */
	bool owns;         /* an allocation whose addresses no earlier one of the graph had */
	CUgraphNode freed; /* the node that frees the allocation; NULL: none */
	unsigned seen;     /* the last walk that came here */
	CUgraph child;
	size_t child_n;    /* nodes that the child had when it was added */
	CUgraphNode *from; /* what it depends on */
	size_t nfrom;
	CUgraphNode next;
};

struct CUgraph_st {
	uint32_t magic;
	unsigned refs; /* the handle, executables made from it, parents, captures into it */
	size_t n;
	CUgraphNode first, *last, newest;
	/* of the node that is being added by hand; others depend on the one before */
	const CUgraphNode *deps;
	size_t ndeps;
};

/* A number for one walk over nodes. */
unsigned graph_walk(void);

static inline uint64_t graph_alloc_size(const struct CUgraphNode_st *n)
{
	return (n->alloc.bytesize + DRV_PAGE - 1) / DRV_PAGE * DRV_PAGE;
}

static inline bool graph_ok(CUgraph g)
{
	return g && g->magic == MAGIC_GRAPH;
}

#endif
