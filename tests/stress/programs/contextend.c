/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contextend.c - memory that ends with its context.
 *
 *   contextend KIND END [--libdir DIR]
 *
 * Three times: makes a context, takes 5 GiB in it, ends the context without giving
 * anything back. KIND: linear, pitched, managed, array, mipmapped, module, library, stack,
 * async, graph. END: destroy, detach, reset, release, green, and what the program should
 * see no difference of: mixed (a green context made before the primary one is retained).
 * One JSON line: rounds that went well, the error of the last, and MiB that CUDA says are
 * used when all have ended, beyond what was used before.
 *
 *   contextend heaps [--libdir DIR]
 *
 * Asks for a heap of 2 GiB in each of two contexts, and for the least in a third. MiB in
 * use then, and when the first two have ended, beyond those of the three contexts.
 *
 *   contextend greens [--libdir DIR]
 *
 * MiB in use beyond the own context after each of: the primary context is retained, a green
 * one is made, the primary one is released, a second green one is made, the first is
 * destroyed, the second is.
 *
 *   contextend sizes [--libdir DIR]
 *
 * MiB in use for a mipmapped array of 512 x 512 x 512 floats, and for one of 16 layers of
 * 1024 x 1024, each with all its levels.
 *
 *   contextend turns|beside|more [--libdir DIR]
 *
 * MiB in use, and the error, of a graph that takes 3 GiB and frees it again four times in
 * turn; of one that takes it twice at once, then frees both; and three times.
 *
 *   contextend pending [--libdir DIR]
 *
 * MiB in use, and error, of room for 2 million launches from the device, and of 40 million.
 *
 *   contextend pools [--libdir DIR]
 *
 * GiB granted of a managed pool that names no card, and of the default one for managed memory.
 */
#include <stdint.h>

#include "calls.h"

#define BYTES (5ull << 30)
#define ROUNDS 3

static long used_mib(void)
{
	size_t left = 0, total = 0;

	return TRY(cuMemGetInfo_v2, &left, &total) ? -1 : (long)((total - left) >> 20);
}

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  ".visible .global .align 8 .b8 big[5368709120];\n"
			  ".visible .entry one()\n{\nret;\n}\n";

static CUresult take_graph(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {1, 0}},
					.bytesize = BYTES};
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	r = r ? r : TRY(cuGraphAddMemAllocNode, &node, graph, (void *)NULL, (size_t)0, &p);
	r = r ? r : TRY(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
	r = r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
	r = r ? r : TRY(cuGraphExecDestroy, exec);
	r = r ? r : TRY(cuGraphDestroy, graph);
	return r ? r : TRY(cuDeviceGraphMemTrim, 0);
}

static CUresult take(const char *kind)
{
	CUDA_ARRAY3D_DESCRIPTOR cube = {
		.Width = 1024, .Height = 1024, .Depth = 1280, .Format = 0x20, .NumChannels = 1};
	CUlibrary library_handle;
	CUdeviceptr p;
	size_t n;
	void *handle;
	CUresult r;

	if (strcmp(kind, "linear") == 0)
		return TRY(cuMemAlloc_v2, &p, (size_t)BYTES);
	if (strcmp(kind, "pitched") == 0)
		return TRY(cuMemAllocPitch_v2, &p, &n, (size_t)(1 << 20), (size_t)(BYTES >> 20),
			   4u);
	if (strcmp(kind, "managed") == 0)
		return TRY(cuMemAllocManaged, &p, (size_t)BYTES, 1u);
	if (strcmp(kind, "array") == 0)
		return TRY(cuArray3DCreate_v2, &handle, &cube);
	if (strcmp(kind, "mipmapped") == 0) {
		cube.Depth = 1100;
		return TRY(cuMipmappedArrayCreate, &handle, &cube, 10u);
	}
	if (strcmp(kind, "module") == 0)
		return TRY(cuModuleLoadData, &handle, ptx);
	if (strcmp(kind, "library") == 0) {
		r = TRY(cuLibraryLoadData, &library_handle, ptx, (void *)NULL, (void *)NULL, 0u,
			(void *)NULL, (void *)NULL, 0u);
		return r ? r : TRY(cuLibraryGetGlobal, &p, &n, library_handle, "big");
	}
	if (strcmp(kind, "stack") == 0) /* for each thread that the card can hold */
		return TRY(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, (size_t)(BYTES / (132 * 2048)));
	if (strcmp(kind, "async") == 0)
		return TRY(cuMemAllocAsync, &p, (size_t)BYTES, (CUstream)NULL);
	if (strcmp(kind, "graph") == 0)
		return take_graph();
	return 998;
}

static CUresult one_round(const char *kind, const char *end)
{
	CUgreenCtx green = NULL;
	CUcontext ctx = NULL;
	CUresult r, ended;
	int own = strcmp(end, "destroy") == 0 || strcmp(end, "detach") == 0;
	int is_green = strcmp(end, "green") == 0 || strcmp(end, "mixed") == 0;

	if (own)
		r = TRY(cuCtxCreate_v2, &ctx, 0u, 0);
	else if (is_green)
		r = TRY(cuGreenCtxCreate, &green, (void *)NULL, 0, 1u);
	else
		r = TRY(cuDevicePrimaryCtxRetain, &ctx, 0);
	if (!r && is_green)
		r = TRY(cuCtxFromGreenCtx, &ctx, green);
	if (!r && strcmp(end, "mixed") == 0)
		r = TRY(cuDevicePrimaryCtxRetain, &ctx, 0);
	r = r ? r : TRY(cuCtxPushCurrent_v2, ctx);
	if (r)
		return r;
	r = take(kind);
	if (own)
		ended = strcmp(end, "detach") == 0 ? TRY(cuCtxDetach, ctx)
						   : TRY(cuCtxDestroy_v2, ctx);
	else if (is_green)
		ended = TRY(cuGreenCtxDestroy, green);
	else if (strcmp(end, "reset") == 0)
		ended = TRY(cuDevicePrimaryCtxReset_v2, 0);
	else
		ended = 0;
	if (strcmp(end, "green") && !own)
		ended |= TRY(cuDevicePrimaryCtxRelease_v2, 0);
	TRY(cuCtxPopCurrent_v2, &ctx);
	return r ? r : ended;
}

static CUresult heaps(void)
{
	CUcontext ctx[3], top;
	CUresult r = 0;
	long before, most;

	for (int i = 0; i < 3; i++)
		r |= TRY(cuCtxCreate_v2, &ctx[i], 0u, 0);
	before = used_mib();
	for (int i = 0; i < 3; i++) {
		r |= TRY(cuCtxPushCurrent_v2, ctx[i]);
		r |= TRY(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE,
			 (size_t)(i < 2 ? 2ull << 30 : 8ull << 20));
		r |= TRY(cuCtxPopCurrent_v2, &top);
	}
	most = used_mib();
	r |= TRY(cuCtxDestroy_v2, ctx[1]);
	r |= TRY(cuCtxDestroy_v2, ctx[0]);
	r |= TRY(cuCtxSetCurrent, ctx[2]);
	printf("{\"held_mib\":%ld,\"left_mib\":%ld,\"last\":%d}\n", most - before,
	       used_mib() - before, r);
	return r;
}

static int greens(void)
{
	long before = used_mib(), at[6];
	CUgreenCtx one, two;
	CUcontext ctx;
	CUresult r = TRY(cuDevicePrimaryCtxRetain, &ctx, 0);

	at[0] = used_mib() - before;
	r |= TRY(cuGreenCtxCreate, &one, (void *)NULL, 0, 1u);
	at[1] = used_mib() - before;
	r |= TRY(cuDevicePrimaryCtxRelease_v2, 0);
	at[2] = used_mib() - before;
	r |= TRY(cuGreenCtxCreate, &two, (void *)NULL, 0, 1u);
	at[3] = used_mib() - before;
	r |= TRY(cuGreenCtxDestroy, one);
	at[4] = used_mib() - before;
	r |= TRY(cuGreenCtxDestroy, two);
	at[5] = used_mib() - before;
	printf("{\"last\":%d,\"at\":[%ld,%ld,%ld,%ld,%ld,%ld]}\n", r, at[0], at[1], at[2], at[3],
	       at[4], at[5]);
	return r;
}

static int sizes(void)
{
	CUDA_ARRAY3D_DESCRIPTOR cube = {512, 512, 512, 0x20, 1, 0};
	CUDA_ARRAY3D_DESCRIPTOR layers = {1024, 1024, 16, 0x20, 1, CUDA_ARRAY3D_LAYERED};
	long before = used_mib(), first, second;
	void *array;
	CUresult r = TRY(cuMipmappedArrayCreate, &array, &cube, 10u);

	first = used_mib() - before;
	r |= TRY(cuMipmappedArrayCreate, &array, &layers, 11u);
	second = used_mib() - before - first;
	printf("{\"cube_mib\":%ld,\"layers_mib\":%ld,\"last\":%d}\n", first, second, r);
	return r;
}

static CUresult add_alloc(CUgraph graph, CUgraphNode *node, CUgraphNode *after, CUdeviceptr *at)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {1, 0}},
					.bytesize = 3ull << 30};
	CUresult r = TRY(cuGraphAddMemAllocNode, node, graph, after, (size_t)(after != NULL), &p);

	*at = p.dptr;
	return r;
}

static int lifetimes(const char *how)
{
	int turns = strcmp(how, "turns") == 0, n = turns ? 4 : strcmp(how, "more") ? 2 : 3;
	CUgraphNode alloc[4], gone[4];
	CUdeviceptr at[4];
	CUgraphExec exec;
	CUgraph graph;
	long before = used_mib();
	CUresult r = TRY(cuGraphCreate, &graph, 0u);

	for (int i = 0; i < n; i++) {
		r |= add_alloc(graph, &alloc[i], turns && i ? &gone[i - 1] : NULL, &at[i]);
		if (turns)
			r |= TRY(cuGraphAddMemFreeNode, &gone[i], graph, &alloc[i], (size_t)1,
				 at[i]);
	}
	for (int i = 0; i < n && !turns; i++)
		r |= TRY(cuGraphAddMemFreeNode, &gone[i], graph, &alloc[i], (size_t)1, at[i]);
	r |= TRY(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
	for (int i = 0; i < 3; i++)
		r = r ? r : TRY(cuGraphLaunch, exec, (CUstream)NULL);
	printf("{\"last\":%d,\"mib\":%ld}\n", r, used_mib() - before);
	return 0;
}

static int pending(void)
{
	long before = used_mib(), first;
	CUresult a = TRY(cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, (size_t)2 << 20);
	CUresult b;
	size_t now = 0;

	first = used_mib() - before;
	b = TRY(cuCtxSetLimit, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, (size_t)40 << 20);
	TRY(cuCtxGetLimit, &now, CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT);
	printf("{\"mib\":%ld,\"first\":%d,\"second\":%d,\"limit\":%zu,\"after_mib\":%ld}\n", first,
	       a, b, now, used_mib() - before);
	return 0;
}

static int granted(CUmemoryPool pool)
{
	CUresult r = 0;
	CUdeviceptr p[20];
	int n = 0;

	while (n < 20 && (r = TRY(cuMemAllocFromPoolAsync, &p[n], (size_t)1 << 30, pool,
				  (CUstream)NULL)) == 0)
		n++;
	for (int i = 0; i < n; i++)
		r |= TRY(cuMemFreeAsync, p[i], (CUstream)NULL);
	TRY(cuCtxSynchronize);
	return n;
}

static int pools(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED};
	CUmemLocation nowhere = {0, 0};
	CUmemoryPool made, standard;
	int own, dflt;

	if (TRY(cuMemPoolCreate, &made, &props) ||
	    TRY(cuMemGetDefaultMemPool, &standard, &nowhere, CU_MEM_ALLOCATION_TYPE_MANAGED))
		return 4;
	own = granted(made);
	dflt = granted(standard);
	printf("{\"made\":%d,\"default\":%d,\"left_mib\":%ld}\n", own, dflt, used_mib());
	return 0;
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "", *end = argc > 2 ? argv[2] : "";
	CUresult r = 0;
	int rounds = 0;
	CUcontext own;
	long before;

	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	if (!cuda || TRY(cuInit, 0u))
		return 3;
	if (strcmp(kind, "heaps") == 0)
		return heaps() ? 1 : 0;
	if (TRY(cuCtxCreate_v2, &own, 0u, 0))
		return 3;
	if (strcmp(kind, "greens") == 0)
		return greens();
	if (strcmp(kind, "turns") == 0 || strcmp(kind, "beside") == 0 || strcmp(kind, "more") == 0)
		return lifetimes(kind);
	if (strcmp(kind, "sizes") == 0)
		return sizes();
	if (strcmp(kind, "pending") == 0)
		return pending();
	if (strcmp(kind, "pools") == 0)
		return pools();
	before = used_mib();
	while (rounds < ROUNDS && (r = one_round(kind, end)) == 0)
		rounds++;
	r |= TRY(cuCtxSynchronize); /* the pools give back what nobody holds */
	printf("{\"rounds\":%d,\"last\":%d,\"left_mib\":%ld}\n", rounds, r, used_mib() - before);
	return 0;
}
