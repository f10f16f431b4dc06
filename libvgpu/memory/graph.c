/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - memory that graphs allocate while they run. A launch is refused if the memory does not
 * fit (graph_size.h). Afterwards the charge is the memory that the card's graph pool has reserved.
 */
#include <string.h>

#include "../base/table.h"
#include "../driver/captures.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "graph.h"
#include "graph_size.h"
#include "pool.h"
#include "take.h"

/* For each card: executable graph -> bytes that it allocates there. */
static struct vgpu_table execs[VGPU_MAX_CARDS] = {[0 ... VGPU_MAX_CARDS - 1] = VGPU_TABLE_INIT};
static struct on_card {
	CUdevice dev;
	uint64_t charged;  /* on our slot */
	uint64_t starting; /* of graphs between being announced and being seen in the pool */
	uint64_t launched; /* of all graphs launched since the last trim */
	uint64_t trims;
} graphs[VGPU_MAX_CARDS];
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;

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

/* Brings the charge to what the pool holds now, and takes back what was announced for it,
 * in one step. */
static void settle(int card, uint64_t announced)
{
	uint64_t reserved, used;

	pthread_mutex_lock(&graphs_lock);
	if (!ask_pool(card, &reserved, &used))
		reserved = graphs[card].charged;
	vgpu_charge_moves(card, graphs[card].charged + announced, reserved);
	graphs[card].charged = reserved;
	pthread_mutex_unlock(&graphs_lock);
}

void vgpu_graphs_settle(int card, CUdevice dev)
{
	STORE(&graphs[card].dev, dev);
	if (LOAD(&execs[card].count))
		settle(card, 0);
}

/* After a trim: what is not in use is the card's again. */
static void trimmed(int card)
{
	uint64_t reserved, used;

	pthread_mutex_lock(&graphs_lock);
	graphs[card].trims++;
	if (ask_pool(card, &reserved, &used))
		graphs[card].launched = used + graphs[card].starting;
	pthread_mutex_unlock(&graphs_lock);
	settle(card, 0);
}

/* A graph that is being launched, on one of its cards. */
struct launch {
	struct vgpu_item exec; /* other: as trims, plus 1, when it was last launched */
	uint64_t bytes;        /* charged before the pool shows them */
};

/* The bytes that the pool may take from the card for a graph. Memory that nobody uses goes first, less
 * what graphs of other threads are about to use. And all graphs that were launched since the last trim
 * hold no more than their sum, however often they run. */
static void starts(struct launch *l)
{
	struct on_card *g = &graphs[l->exec.card];
	uint64_t reserved, used, more = l->exec.size, busy;

	pthread_mutex_lock(&graphs_lock);
	busy = g->starting;
	g->starting += l->exec.size;
	if (l->exec.other != g->trims + 1)
		g->launched += l->exec.size;
	if (ask_pool(l->exec.card, &reserved, &used)) {
		busy += used;
		if (used <= g->launched && g->launched <= reserved)
			more = 0;
		else if (reserved > busy)
			more = more > reserved - busy ? more - (reserved - busy) : 0;
	}
	pthread_mutex_unlock(&graphs_lock);
	l->bytes = vgpu_pool_steps(more);
}

/* It was launched, or (ran: false) it was not. */
static void started(struct launch *l, bool ran)
{
	struct on_card *g = &graphs[l->exec.card];
	struct vgpu_item was;

	pthread_mutex_lock(&graphs_lock);
	g->starting -= l->exec.size;
	if (l->exec.other != g->trims + 1 && ran) {
		l->exec.other = g->trims + 1;
		if (vgpu_table_take(&execs[l->exec.card], l->exec.key, &was))
			vgpu_table_put(&execs[l->exec.card], &l->exec);
	} else if (l->exec.other != g->trims + 1) {
		g->launched -= l->exec.size < g->launched ? l->exec.size : g->launched;
	}
	pthread_mutex_unlock(&graphs_lock);
}

/* Charges what the pool may take from the card; 0 or -ENOMEM. */
static int take(struct launch *l)
{
	int card = l->exec.card, r;

	vgpu_mem_begin();
	settle(card, 0);
	for (int tries = 0; tries < 2; tries++) {
		if (tries && vgpu_real.cuDeviceGraphMemTrim && !vgpu_capturing()) {
			vgpu_real.cuDeviceGraphMemTrim(LOAD(&graphs[card].dev));
			trimmed(card);
		}
		starts(l);
		r = vgpu_mem_take(card, l->bytes);
		if (r == 0)
			return 0;
		started(l, false);
	}
	vgpu_mem_end();
	return r;
}

/* After the launch, or if there was none: the charge becomes the pool's memory. */
static void launched(struct launch *l, bool ran)
{
	settle(l->exec.card, l->bytes);
	started(l, ran);
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
		n += LOAD(&execs[card].count) &&
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
		if (LOAD(&execs[card].count))
			vgpu_table_take(&execs[card], (uint64_t)(uintptr_t)graph, &item);
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
	struct vgpu_graph_size on[VGPU_MAX_CARDS];
	bool known;

	if (r != CUDA_SUCCESS || !exec || !vgpu_state.grant)
		return r;
	/* One of this handle ended with its context. */
	vgpu_graph_forget(*exec);
	known = vgpu_graph_size(graph, on);
	for (int card = 0; card < VGPU_MAX_CARDS && known; card++) {
		struct vgpu_item item = {.key = (uint64_t)(uintptr_t)*exec,
					 .size = on[card].bytes,
					 .card = card};

		if (!item.size)
			continue;
		STORE(&graphs[card].dev, on[card].dev);
		known = vgpu_table_put(&execs[card], &item);
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
		CUresult r;                                                               \
                                                                                          \
		VGPU_NEED_CUDA(name);                                                     \
		uploads = uploads && vgpu_state.grant && vgpu_real.upload;                \
		if (!uploads)                                                             \
			return instantiated(vgpu_real.name(exec, graph, p), exec, graph); \
		p->flags &= ~CU_GRAPH_INSTANTIATE_UPLOAD;                                 \
		r = instantiated(vgpu_real.name(exec, graph, p), exec, graph);            \
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
	if (r == CUDA_SUCCESS && card >= 0) {
		STORE(&graphs[card].dev, dev);
		trimmed(card);
	}
	vgpu_mem_end();
	return r;
}
