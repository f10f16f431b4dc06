/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - every way to start work on the card, and the calls that end a
 * batch. Without a closed gate a launch costs one load, one branch and one
 * increment.
 */
#ifdef VGPU_PRELOAD
#include "vgpu.h"

/* Taken for the cost of what has never been measured. */
#define UNKNOWN_KERNEL_NS 200000u
#define UNKNOWN_GRAPH_NS 1000000u
#define UNKNOWN_COPY_NS 100000u

static uint64_t key_of(CUfunction f, uint64_t gx, uint64_t gy, uint64_t gz, uint64_t bx,
		       uint64_t by, uint64_t bz)
{
	return vgpu_mix(vgpu_mix((uint64_t)(uintptr_t)f, gx * gy * gz), bx * by * bz);
}

/* A sign of life for gresd; a lost increment does no harm. */
static void count_launch(CUstream stream)
{
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();
	uint64_t *n;

	if (card < 0)
		return;
	/* A context that no hook of ours saw being made. */
	if (unlikely(!__atomic_load_n(&vgpu_my(card)->contexts, __ATOMIC_RELAXED)))
		vgpu_context_seen(card);
	vgpu_working_note(card, stream);
	n = &vgpu_my(card)->launches;
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

void vgpu_waited(CUstream stream, uint64_t began)
{
	static uint64_t waited_for[VGPU_MAX_CARDS];
	int card = vgpu_state.ncards == 1 ? 0 : vgpu_card_current();
	uint64_t launches;
	uint32_t *n;

	if (card < 0)
		return;
	if (unlikely(began))
		vgpu_gate_waited(card, began);
	launches = __atomic_load_n(&vgpu_my(card)->launches, __ATOMIC_RELAXED);
	/* A program that asks again and again has waited once. */
	if (launches == __atomic_load_n(&waited_for[card], __ATOMIC_RELAXED))
		return;
	/* A host that waits for the last but one is ahead of the card. */
	if (stream && !vgpu_working_is(card, stream) && vgpu_working(card))
		return;
	__atomic_store_n(&waited_for[card], launches, __ATOMIC_RELAXED);
	n = &vgpu_my(card)->syncs;
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

bool vgpu_launches_wait;

/* Runs call between the two halves of the gate, if it is closed at all. returns_late: the
 * driver waits in it for the work. */
#define GATED_CALL(real, stream, key, unknown, returns_late, call)              \
	do {                                                                    \
		struct vgpu_launch launch = {                                   \
			.waits = (returns_late) || unlikely(vgpu_launches_wait)}; \
		CUresult result;                                                \
                                                                                \
		if (unlikely(!(real))) {                                        \
			vgpu_need_cuda();                                       \
			if (!(real))                                            \
				return CUDA_ERROR_NO_DEVICE;                    \
		}                                                               \
		if (vgpu_state.grant)                                           \
			count_launch(stream);                                   \
		if (likely(!__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED))) \
			return call;                                            \
		vgpu_gate_enter(&launch, stream, key, unknown);                 \
		result = call;                                                  \
		vgpu_gate_leave(&launch, result);                               \
		return result;                                                  \
	} while (0)

#define GATED(real, stream, key, unknown, call) \
	GATED_CALL(real, stream, key, unknown, false, call)

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

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	GATED(vgpu_real.cuGraphLaunch, vgpu_stream(stream, false), graph_key(graph),
	      UNKNOWN_GRAPH_NS, vgpu_graph_launch(vgpu_real.cuGraphLaunch, graph, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	GATED(vgpu_real.cuGraphLaunch_ptsz, vgpu_stream(stream, true), graph_key(graph),
	      UNKNOWN_GRAPH_NS, vgpu_graph_launch(vgpu_real.cuGraphLaunch_ptsz, graph, stream));
}

/* Uploading takes the memory that the graph's nodes will allocate. */
CUresult cuGraphUpload(CUgraphExec graph, CUstream stream)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuGraphUpload)
		return CUDA_ERROR_NO_DEVICE;
	return vgpu_graph_launch(vgpu_real.cuGraphUpload, graph, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuGraphUpload_ptsz)
		return CUDA_ERROR_NO_DEVICE;
	return vgpu_graph_launch(vgpu_real.cuGraphUpload_ptsz, graph, stream);
}

/* Copies and fills keep the card's memory busy like a kernel does. Learned by
 * size class. */

/* Keys of what is learned. */
#define COPIED 0x636f7079
#define FILLED 0x66696c6c
#define FILLED_2D 0x66696c32

static uint64_t bytes_key(uint64_t kind, uint64_t bytes)
{
	return vgpu_mix(kind, 64u - (uint64_t)__builtin_clzll(bytes | 1));
}

#define MOVED(real, stream, kind, bytes, returns_late, call)                                      \
	do {                                                                        \
		vgpu_need_cuda();                                                   \
		if (!(real))                                                        \
			return CUDA_ERROR_NO_DEVICE;                                \
		size_t moved = (bytes);                                             \
		if (moved < SMALL_BYTES)                                            \
			return call;                                                \
		GATED_CALL(real, stream, bytes_key(kind, moved), UNKNOWN_COPY_NS,   \
			   returns_late, call);                                     \
	} while (0)

#define COPY(name, per_thread)                                                     \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t size)               \
	{                                                                          \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), COPIED, size, \
		      true, vgpu_real.name(dst, src, size));                             \
	}
#define COPY_ASYNC(name, per_thread)                                                  \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) \
	{                                                                             \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), COPIED, size,  \
		      false, vgpu_real.name(dst, src, size, stream));                        \
	}
/* Of addresses that say themselves where they are: within the card it is work of the card;
 * any other is the copy engines', and a boundary. */
static size_t bytes_inside(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
	unsigned to = 0, from = 0;

	if (size < SMALL_BYTES || !__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED) ||
	    !vgpu_real.cuPointerGetAttribute)
		return 0;
	vgpu_real.cuPointerGetAttribute(&to, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, dst);
	vgpu_real.cuPointerGetAttribute(&from, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, src);
	if (to == CU_MEMORYTYPE_DEVICE && from == CU_MEMORYTYPE_DEVICE)
		return size;
	vgpu_gate_boundary(stream, true);
	return 0;
}

#define UNIFIED(name, per_thread)                                                  \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t size)               \
	{                                                                          \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), COPIED,       \
		      bytes_inside(dst, src, size, vgpu_stream(NULL, per_thread)), \
		      true, vgpu_real.name(dst, src, size));                             \
	}
#define UNIFIED_ASYNC(name, per_thread)                                               \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) \
	{                                                                             \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), COPIED,        \
		      bytes_inside(dst, src, size, vgpu_stream(stream, per_thread)),  \
		      false, vgpu_real.name(dst, src, size, stream));                        \
	}
#define FILL(name, type, per_thread)                                                           \
	CUresult name(CUdeviceptr dst, type value, size_t n)                                   \
	{                                                                                      \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), FILLED, n * sizeof value, \
		      true, vgpu_real.name(dst, value, n));                                          \
	}
#define FILL_ASYNC(name, type, per_thread)                                                       \
	CUresult name(CUdeviceptr dst, type value, size_t n, CUstream stream)                    \
	{                                                                                        \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), FILLED, n * sizeof value, \
		      false, vgpu_real.name(dst, value, n, stream));                                    \
	}
#define FILL_2D(name, type, per_thread)                                                       \
	CUresult name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                     \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), FILLED_2D,               \
		      width *height * sizeof value,                                           \
		      true, vgpu_real.name(dst, pitch, value, width, height));                      \
	}
#define FILL_2D_ASYNC(name, type, per_thread)                                                 \
	CUresult name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, \
		      CUstream stream)                                                        \
	{                                                                                     \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), FILLED_2D,             \
		      width *height * sizeof value,                                           \
		      false, vgpu_real.name(dst, pitch, value, width, height, stream));              \
	}
COPY(cuMemcpyDtoD_v2, false)
COPY(cuMemcpyDtoD_v2_ptds, true)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, true)
UNIFIED(cuMemcpy, false)
UNIFIED(cuMemcpy_ptds, true)
UNIFIED_ASYNC(cuMemcpyAsync, false)
UNIFIED_ASYNC(cuMemcpyAsync_ptsz, true)
FILL(cuMemsetD8_v2, unsigned char, false)
FILL(cuMemsetD8_v2_ptds, unsigned char, true)
FILL(cuMemsetD16_v2, unsigned short, false)
FILL(cuMemsetD16_v2_ptds, unsigned short, true)
FILL(cuMemsetD32_v2, unsigned, false)
FILL(cuMemsetD32_v2_ptds, unsigned, true)
FILL_ASYNC(cuMemsetD8Async, unsigned char, false)
FILL_ASYNC(cuMemsetD8Async_ptsz, unsigned char, true)
FILL_ASYNC(cuMemsetD16Async, unsigned short, false)
FILL_ASYNC(cuMemsetD16Async_ptsz, unsigned short, true)
FILL_ASYNC(cuMemsetD32Async, unsigned, false)
FILL_ASYNC(cuMemsetD32Async_ptsz, unsigned, true)
FILL_2D(cuMemsetD2D8_v2, unsigned char, false)
FILL_2D(cuMemsetD2D8_v2_ptds, unsigned char, true)
FILL_2D(cuMemsetD2D16_v2, unsigned short, false)
FILL_2D(cuMemsetD2D16_v2_ptds, unsigned short, true)
FILL_2D(cuMemsetD2D32_v2, unsigned, false)
FILL_2D(cuMemsetD2D32_v2_ptds, unsigned, true)
FILL_2D_ASYNC(cuMemsetD2D8Async, unsigned char, false)
FILL_2D_ASYNC(cuMemsetD2D8Async_ptsz, unsigned char, true)
FILL_2D_ASYNC(cuMemsetD2D16Async, unsigned short, false)
FILL_2D_ASYNC(cuMemsetD2D16Async_ptsz, unsigned short, true)
FILL_2D_ASYNC(cuMemsetD2D32Async, unsigned, false)
FILL_2D_ASYNC(cuMemsetD2D32Async_ptsz, unsigned, true)

CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuGraphExecDestroy)
		return CUDA_ERROR_NO_DEVICE;
	/* The next graph may get the same address. */
	vgpu_cost_forget(graph_key(graph));
	vgpu_graph_forget(graph);
	return vgpu_real.cuGraphExecDestroy(graph);
}
#endif
