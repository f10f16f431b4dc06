/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - copies within the card, and fills. They keep the card's memory busy like a
 * kernel does, and are gated as kernels are. Learned by size class.
 */
#include "../driver/prototypes.h"
#include "launch.h"

/* Taken for the cost of what has never been measured. */
#define UNKNOWN_COPY_NS 100000u

/* Keys of what is learned. */
#define COPIED 0x636f7079
#define FILLED 0x66696c6c
#define FILLED_2D 0x66696c32

static uint64_t bytes_key(uint64_t kind, uint64_t bytes)
{
	return vgpu_mix(kind, 64u - (uint64_t)__builtin_clzll(bytes | 1));
}

/* Returns the bytes of a copy within the card. 0: the copy engines do it, between card and host or another
 * card. If it is large, it ends the stream's batch. */
static size_t if_inside(bool inside, size_t bytes, CUstream stream)
{
	if (inside)
		return bytes;
	if (!LOAD(&vgpu_gate_any))
		return 0;
	if (bytes >= SMALL_BYTES)
		vgpu_gate_boundary(stream, true);
	else
		vgpu_count_entry();
	return 0;
}

static bool asks(void)
{
	return LOAD(&vgpu_gate_any) && vgpu_real.cuPointerGetAttribute;
}

static bool in_card(CUdeviceptr ptr)
{
	unsigned type = 0;

	vgpu_real.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
	return type == CU_MEMORYTYPE_DEVICE;
}

static bool one_card(CUdeviceptr dst, CUdeviceptr src)
{
	int to = 0, from = 0;

	vgpu_real.cuPointerGetAttribute(&to, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, dst);
	vgpu_real.cuPointerGetAttribute(&from, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, src);
	return to == from;
}

/* Of addresses that say themselves where they are. */
static size_t linear(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	if (!asks())
		return 0;
	return if_inside(in_card(dst) && in_card(src) && one_card(dst, src), bytes, stream);
}

/* Both are in a card's memory. */
static size_t peers(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	return if_inside(!asks() || one_card(dst, src), bytes, stream);
}

static bool end_in_card(unsigned type, CUdeviceptr ptr)
{
	return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
	       (type == CU_MEMORYTYPE_UNIFIED && asks() && in_card(ptr));
}

static size_t plane(const CUDA_MEMCPY2D *c, CUstream stream)
{
	return c ? if_inside(end_in_card(c->dstMemoryType, c->dstDevice) &&
				     end_in_card(c->srcMemoryType, c->srcDevice),
			     c->WidthInBytes * c->Height, stream)
		 : 0;
}

static size_t box(const CUDA_MEMCPY3D *c, CUstream stream)
{
	return c ? if_inside(end_in_card(c->dstMemoryType, c->dstDevice) &&
				     end_in_card(c->srcMemoryType, c->srcDevice),
			     c->WidthInBytes * c->Height * c->Depth, stream)
		 : 0;
}

/* Of a batch, what is the card's; a boundary where nothing is. */
static size_t batch(const CUdeviceptr *dst, const CUdeviceptr *src, const size_t *sizes, size_t n,
		    CUstream stream)
{
	size_t all = 0, inside = 0;

	if (!dst || !src || !sizes || !asks())
		return 0;
	for (size_t i = 0; i < n; i++) {
		all += sizes[i];
		if (in_card(dst[i]) && in_card(src[i]) && one_card(dst[i], src[i]))
			inside += sizes[i];
	}
	return if_inside(inside, inside ? inside : all, stream);
}

static bool operand_in_card(const CUmemcpy3DOperand *o)
{
	return o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || in_card(o->op.ptr.ptr);
}

/* Elements of an array have up to so many bytes. */
#define ELEMENT 16

static size_t boxes(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t n, CUstream stream)
{
	size_t all = 0, inside = 0, one;

	if (!ops || !asks())
		return 0;
	for (size_t i = 0; i < n; i++) {
		one = ops[i].extent.width * ops[i].extent.height * ops[i].extent.depth;
		if (ops[i].src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
		    ops[i].dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
			one *= ELEMENT;
		all += one;
		if (operand_in_card(&ops[i].src) && operand_in_card(&ops[i].dst))
			inside += one;
	}
	return if_inside(inside, inside ? inside : all, stream);
}

/* A small move counts as a launch only while the gate is closed. */
static bool passes(size_t moved)
{
	return !moved || (moved < SMALL_BYTES && !LOAD(&vgpu_gate_any));
}

/* in: the stream. bytes may name it, and the parameters. waits: the driver, for the work. */
#define CU_MOVE(name, params, args, kind, stream_of, waits, bytes)                             \
	CUresult name params                                                                   \
	{                                                                                      \
		CUstream in = stream_of;                                                       \
                                                                                               \
		VGPU_NEED_CUDA(name);                                                          \
		size_t moved = (bytes);                                                        \
		if (passes(moved))                                                             \
			return vgpu_real.name args;                                            \
		GATED_CALL(vgpu_real.name, in, bytes_key(kind, moved), UNKNOWN_COPY_NS, waits, \
			   vgpu_real.name args);                                               \
	}
#define CU_MOVE_PTDS(name, params, args, kind, bytes)                    \
	CU_MOVE(name, params, args, kind, CU_STREAM_LEGACY, true, bytes) \
	CU_MOVE(name##_ptds, params, args, kind, CU_STREAM_PER_THREAD, true, bytes)
#define CU_MOVE_PTSZ(name, params, args, kind, bytes)                               \
	CU_MOVE(name, params, args, kind, vgpu_stream(stream, false), false, bytes) \
	CU_MOVE(name##_ptsz, params, args, kind, vgpu_stream(stream, true), false, bytes)
#define CU(name, params)
#include "../driver/hooks.def"
