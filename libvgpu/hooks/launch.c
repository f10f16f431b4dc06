/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - every way to launch kernels, and waits. Without a closed gate a launch
 * costs one load, one branch and one increment.
 */
#include "launch.h"
#include "../compute/costs.h"
#include "../compute/waits.h"
#include "../driver/prototypes.h"
#include "../job/cards.h"
#include "../memory/memory.h"

/* Taken for the cost of what has never been measured. */
#define UNKNOWN_KERNEL_NS 200000u
#define UNKNOWN_GRAPH_NS 1000000u

static uint64_t key_of(CUfunction f, uint64_t gx, uint64_t gy, uint64_t gz, uint64_t bx,
		       uint64_t by, uint64_t bz)
{
	return vgpu_mix(vgpu_mix((uint64_t)(uintptr_t)f, gx * gy * gz), bx * by * bz);
}

void vgpu_count_launch(CUstream stream)
{
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();

	if (card < 0)
		return;
	/* A context that no hook of ours saw being made. */
	if (unlikely(!__atomic_load_n(&vgpu_my(card)->contexts, __ATOMIC_RELAXED)))
		vgpu_context_seen(card);
	vgpu_waits_launched(card, stream);
	uint64_t *n = &vgpu_my(card)->launches;
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

#define GATED(real, stream, key, unknown, call) GATED_CALL(real, stream, key, unknown, false, call)

static const CUlaunchConfig *config_of(const CUlaunchConfig *config)
{
	static const CUlaunchConfig none;

	return config ? config : &none;
}

static uint64_t config_key(CUfunction f, const CUlaunchConfig *config)
{
	const CUlaunchConfig *c = config_of(config);

	return key_of(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
		      c->blockDimZ);
}

/* A launch on several cards is gated as a whole, on the first entry's card: its parts wait for each
 * other, so no part may be throttled alone. */
static const CUDA_LAUNCH_PARAMS *first_of(const CUDA_LAUNCH_PARAMS *list, unsigned n)
{
	static const CUDA_LAUNCH_PARAMS none;

	return list && n ? list : &none;
}

static uint64_t list_key(const CUDA_LAUNCH_PARAMS *list, unsigned n)
{
	const CUDA_LAUNCH_PARAMS *p = first_of(list, n);

	return key_of(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX,
		      p->blockDimY, p->blockDimZ);
}

#define LAUNCH(name, params, args, stream, key)                                             \
	CUresult name params                                                                \
	{                                                                                   \
		GATED(vgpu_real.name, stream, key, UNKNOWN_KERNEL_NS, vgpu_real.name args); \
	}
#define CU_LAUNCH(name, params, args, stream, key) \
	LAUNCH(name, params, args, vgpu_stream(stream, false), key)
#define CU_LAUNCH_PTSZ(name, params, args, stream, key) \
	CU_LAUNCH(name, params, args, stream, key)      \
	LAUNCH(name##_ptsz, params, args, vgpu_stream(stream, true), key)
#define CU(name, params)
#include "../driver/hooks.def"

static uint64_t graph_key(CUgraphExec graph)
{
	return vgpu_mix((uint64_t)(uintptr_t)graph, 0x67726170);
}

#define LAUNCH_GRAPH(name, per_thread)                                                     \
	CUresult name(CUgraphExec graph, CUstream stream)                                  \
	{                                                                                  \
		GATED(vgpu_real.name, vgpu_stream(stream, per_thread), graph_key(graph),   \
		      UNKNOWN_GRAPH_NS, vgpu_graph_launch(vgpu_real.name, graph, stream)); \
	}
LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

/* Uploading takes the memory that the graph's nodes will allocate. */
#define UPLOAD_GRAPH(name)                                               \
	CUresult name(CUgraphExec graph, CUstream stream)                \
	{                                                                \
		VGPU_NEED_CUDA(name);                                    \
		return vgpu_graph_launch(vgpu_real.name, graph, stream); \
	}
UPLOAD_GRAPH(cuGraphUpload)
UPLOAD_GRAPH(cuGraphUpload_ptsz)

CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	VGPU_NEED_CUDA(cuGraphExecDestroy);
	/* The next graph may get the same address. */
	vgpu_cost_forget(graph_key(graph));
	vgpu_graph_forget(graph);
	return vgpu_real.cuGraphExecDestroy(graph);
}
