// SPDX-License-Identifier: Apache-2.0
/* graphs.c - cases about graphs: their memory, graphs in graphs, their nodes. */
#define _GNU_SOURCE
#include "../model.h"
#include "apitest.h"

#include <string.h>

void case_graph_memory(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {1, 0}},
					.bytesize = 100 * MIB};
	CUgraphNode a, b;
	CUgraphExec x;
	CUdeviceptr at;
	CUgraph g;
	size_t before;
	uint64_t v;

	start();
	before = free_bytes();
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	TRUE(p.dptr);
	OK(cuGraphAddMemFreeNode(&b, g, &a, 1, p.dptr));
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	EQ(free_bytes(), before);
	OK(cuGraphLaunch(x, NULL));
	OK(cuGraphLaunch(x, NULL));
	EQ(before - free_bytes(), 100 * MIB);
	OK(cuDeviceGetGraphMemAttribute(0, 2, &v));
	EQ(v, 100 * MIB);
	OK(cuGraphExecDestroy(x));
	EQ(before - free_bytes(), 100 * MIB); /* kept for other graphs */
	OK(cuDeviceGraphMemTrim(0));
	EQ(free_bytes(), before);
	/* An allocation after a free gets freed addresses, also a part of them. */
	at = p.dptr;
	p.bytesize = 60 * MIB;
	OK(cuGraphAddMemAllocNode(&a, g, &b, 1, &p));
	EQ(p.dptr, at);
	p.bytesize = 40 * MIB;
	OK(cuGraphAddMemAllocNode(&a, g, &b, 1, &p));
	EQ(p.dptr, at + 60 * MIB);
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	TRUE(p.dptr < at || p.dptr >= at + 100 * MIB);
	p.bytesize = 1ull << 40;
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	EQ(cuGraphLaunch(x, NULL), CUDA_ERROR_OUT_OF_MEMORY);
}

/* A graph in a graph is taken as it was; a capture may go on with a graph. */
void case_child_graph(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS p = {0};
	CUgraph child, g, again;
	CUgraphNode n;
	CUgraphExec x;
	CUevent a, b;
	CUfunction f;
	CUstream s;
	size_t count = 0;
	float ms;

	start();
	f = function("us");
	OK(cuStreamCreate(&s, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuStreamBeginCapture_v2(s, 1));
	run_us(f, 999, s);
	run_us(f, 999, s);
	OK(cuStreamEndCapture(s, &child));
	OK(cuGraphCreate(&g, 0));
	EQ(cuGraphAddChildGraphNode(&n, g, NULL, 0, g), CUDA_ERROR_INVALID_VALUE);
	OK(cuGraphAddChildGraphNode(&n, g, NULL, 0, child));
	OK(cuGraphAddChildGraphNode(&n, g, &n, 1, child));
	OK(cuGraphChildGraphNodeGetGraph(n, &again));
	EQ(again == child, 1);
	OK(cuStreamBeginCaptureToGraph(s, child, NULL, NULL, 0, 1));
	run_us(f, 50000, s);
	OK(cuStreamEndCapture(s, &again));
	EQ(again == child, 1);
	OK(cuGraphGetNodes(child, NULL, &count));
	EQ(count, 3);
	OK(cuGraphDestroy(child));
	OK(cuGraphInstantiateWithParams(&x, g, &p));
	EQ(p.result_out, 0);
	OK(cuGraphDestroy(g));
	OK(cuEventRecord(a, s));
	OK(cuGraphLaunch(x, s));
	OK(cuEventRecord(b, s));
	OK(cuStreamSynchronize(s));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 4000, 4100);
	OK(cuGraphExecDestroy(x));
}

/* A graph holds nothing of the calls that add nodes, and a capture keeps its graph. */
void case_graph_lives(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {
		.poolProps = {.allocType = 1, .location = {1, 0}},
		.bytesize = 64ull << 30,
	};
	CUgraphNode a, b, from[2], to[2];
	CUgraph g, again;
	CUfunction f;
	CUstream s;
	size_t n = 2;

	start();
	f = function("us");
	OK(cuStreamCreate(&s, 1));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
	from[0] = a;
	EQ(cuGraphAddMemFreeNode(&b, g, from, 1, 1), CUDA_ERROR_INVALID_VALUE);
	from[0] = NULL;
	OK(cuStreamBeginCaptureToGraph(s, g, NULL, NULL, 0, 1));
	run_us(f, 10, s);
	OK(cuGraphGetEdges(g, from, to, &n));
	EQ(n, 1);
	EQ(from[0] == a, 1);
	OK(cuGraphDestroy(g));
	EQ(cuStreamEndCapture(s, &again), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EQ(again == NULL, 1);
	/* The addresses of a graph end with it. These are more than a process has. */
	for (int i = 0; i < 3000; i++) {
		OK(cuGraphCreate(&g, 0));
		OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &p));
		OK(cuGraphDestroy(g));
	}
}
