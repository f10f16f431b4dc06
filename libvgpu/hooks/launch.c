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

#define LAUNCH_KERNEL(name, per_thread)                                                          \
	CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,          \
		      unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params, \
		      void **extra)                                                              \
	{                                                                                        \
		GATED(vgpu_real.name, vgpu_stream(stream, per_thread),                           \
		      key_of(f, gx, gy, gz, bx, by, bz), UNKNOWN_KERNEL_NS,                      \
		      vgpu_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)); \
	}
LAUNCH_KERNEL(cuLaunchKernel, false)
LAUNCH_KERNEL(cuLaunchKernel_ptsz, true)

#define LAUNCH_EX(name, per_thread)                                                                \
	CUresult name(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)     \
	{                                                                                          \
		static const CUlaunchConfig none;                                                  \
		const CUlaunchConfig *c = config ? config : &none;                                 \
                                                                                                   \
		GATED(vgpu_real.name, vgpu_stream(c->hStream, per_thread),                         \
		      key_of(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, \
			     c->blockDimZ),                                                        \
		      UNKNOWN_KERNEL_NS, vgpu_real.name(config, f, params, extra));                \
	}
LAUNCH_EX(cuLaunchKernelEx, false)
LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

#define LAUNCH_COOPERATIVE(name, per_thread)                                                     \
	CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,          \
		      unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params) \
	{                                                                                        \
		GATED(vgpu_real.name, vgpu_stream(stream, per_thread),                           \
		      key_of(f, gx, gy, gz, bx, by, bz), UNKNOWN_KERNEL_NS,                      \
		      vgpu_real.name(f, gx, gy, gz, bx, by, bz, shared, stream, params));        \
	}
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel, false)
LAUNCH_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

/* Gated on the first entry's card: its parts wait for each other, so one may
 * not be held back alone. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags)
{
	static const CUDA_LAUNCH_PARAMS none;
	const CUDA_LAUNCH_PARAMS *p = list && n ? list : &none;

	GATED(vgpu_real.cuLaunchCooperativeKernelMultiDevice, vgpu_stream(p->hStream, false),
	      key_of(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
		     p->blockDimZ),
	      UNKNOWN_KERNEL_NS, vgpu_real.cuLaunchCooperativeKernelMultiDevice(list, n, flags));
}

CUresult cuLaunch(CUfunction f)
{
	GATED(vgpu_real.cuLaunch, CU_STREAM_LEGACY, vgpu_mix((uint64_t)(uintptr_t)f, 1),
	      UNKNOWN_KERNEL_NS, vgpu_real.cuLaunch(f));
}

CUresult cuLaunchGrid(CUfunction f, int w, int h)
{
	GATED(vgpu_real.cuLaunchGrid, CU_STREAM_LEGACY,
	      vgpu_mix((uint64_t)(uintptr_t)f, (uint64_t)w * (uint64_t)h), UNKNOWN_KERNEL_NS,
	      vgpu_real.cuLaunchGrid(f, w, h));
}

CUresult cuLaunchGridAsync(CUfunction f, int w, int h, CUstream stream)
{
	GATED(vgpu_real.cuLaunchGridAsync, vgpu_stream(stream, false),
	      vgpu_mix((uint64_t)(uintptr_t)f, (uint64_t)w * (uint64_t)h), UNKNOWN_KERNEL_NS,
	      vgpu_real.cuLaunchGridAsync(f, w, h, stream));
}

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
