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
	if (bytes >= SMALL_BYTES && LOAD(&vgpu_gate_any))
		vgpu_gate_boundary(stream, true);
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

/* of and bytes may name the parameters, bytes the stream, too. waits: the driver, for the work. */
#define MOVE(name, kind, params, args, of, waits, bytes)                                           \
	CUresult name params                                                                       \
	{                                                                                          \
		CUstream stream = of;                                                              \
		size_t moved;                                                                      \
                                                                                                   \
		VGPU_NEED_CUDA(name);                                                              \
		moved = (bytes);                                                                   \
		if (passes(moved))                                                                 \
			return vgpu_real.name args;                                                \
		GATED_CALL(vgpu_real.name, stream, bytes_key(kind, moved), UNKNOWN_COPY_NS, waits, \
			   vgpu_real.name args);                                                   \
	}
/* In both kinds of default stream. */
#define MOVES(name, kind, params, args, bytes)                        \
	MOVE(name, kind, params, args, CU_STREAM_LEGACY, true, bytes) \
	MOVE(name##_ptds, kind, params, args, CU_STREAM_PER_THREAD, true, bytes)
#define MOVES_ASYNC(name, kind, params, args, bytes)                              \
	MOVE(name, kind, params, args, vgpu_stream(hStream, false), false, bytes) \
	MOVE(name##_ptsz, kind, params, args, vgpu_stream(hStream, true), false, bytes)
#define COPIES(name, params, args, bytes) MOVES(name, COPIED, params, args, bytes)
#define COPIES_ASYNC(name, params, args, bytes) MOVES_ASYNC(name, COPIED, params, args, bytes)

COPIES(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size), size)
COPIES_ASYNC(cuMemcpyDtoDAsync_v2,
	     (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream hStream),
	     (dst, src, size, hStream), size)
COPIES(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t size), (dst, src, size),
       linear(dst, src, size, stream))
COPIES_ASYNC(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream hStream),
	     (dst, src, size, hStream), linear(dst, src, size, stream))
COPIES(cuMemcpyPeer,
       (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t size),
       (dst, dctx, src, sctx, size), peers(dst, src, size, stream))
COPIES_ASYNC(cuMemcpyPeerAsync,
	     (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t size,
	      CUstream hStream),
	     (dst, dctx, src, sctx, size, hStream), peers(dst, src, size, stream))
COPIES(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy), plane(copy, stream))
COPIES(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy), plane(copy, stream))
COPIES_ASYNC(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream hStream), (copy, hStream),
	     plane(copy, stream))
COPIES(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy), box(copy, stream))
COPIES_ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream hStream), (copy, hStream),
	     box(copy, stream))
COPIES(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy), box(copy, stream))
COPIES_ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream hStream),
	     (copy, hStream), box(copy, stream))
COPIES(cuMemcpyAtoA_v2, (CUarray dst, size_t to, CUarray src, size_t from, size_t size),
       (dst, to, src, from, size), size)
COPIES(cuMemcpyAtoD_v2, (CUdeviceptr dst, CUarray src, size_t from, size_t size),
       (dst, src, from, size), size)
COPIES(cuMemcpyDtoA_v2, (CUarray dst, size_t to, CUdeviceptr src, size_t size),
       (dst, to, src, size), size)
COPIES_ASYNC(cuMemcpyBatchAsync,
	     (CUdeviceptr * dst, CUdeviceptr *src, size_t *sizes, size_t n, void *attrs,
	      size_t *attrs_at, size_t nattrs, size_t *failed, CUstream hStream),
	     (dst, src, sizes, n, attrs, attrs_at, nattrs, failed, hStream),
	     batch(dst, src, sizes, n, stream))
COPIES_ASYNC(cuMemcpyBatchAsync_v2,
	     (const CUdeviceptr *dst, const CUdeviceptr *src, const size_t *sizes, size_t n,
	      void *attrs, size_t *attrs_at, size_t nattrs, CUstream hStream),
	     (dst, src, sizes, n, attrs, attrs_at, nattrs, hStream),
	     batch(dst, src, sizes, n, stream))
COPIES_ASYNC(cuMemcpy3DBatchAsync,
	     (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags,
	      CUstream hStream),
	     (n, ops, failed, flags, hStream), boxes(ops, n, stream))
COPIES_ASYNC(cuMemcpy3DBatchAsync_v2,
	     (size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream hStream),
	     (n, ops, flags, hStream), boxes(ops, n, stream))
COPIES_ASYNC(cuMemcpyWithAttributesAsync,
	     (CUdeviceptr dst, CUdeviceptr src, size_t size, void *attr, CUstream hStream),
	     (dst, src, size, attr, hStream), linear(dst, src, size, stream))
COPIES_ASYNC(cuMemcpy3DWithAttributesAsync,
	     (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream hStream),
	     (op, flags, hStream), boxes(op, 1, stream))

/* Copies of before CUDA 3.2, most of which are held wherever they go. */
#define OLD_COPY(name, params, args, bytes) \
	MOVE(name, COPIED, params, args, CU_STREAM_LEGACY, true, bytes)
#define OLD_COPY_ASYNC(name)                                                      \
	MOVE(name, COPIED, (const void *copy, CUstream hStream), (copy, hStream), \
	     vgpu_stream(hStream, false), false, SMALL_BYTES)
OLD_COPY(cuMemcpy2D, (const void *copy), (copy), SMALL_BYTES)
OLD_COPY(cuMemcpy2DUnaligned, (const void *copy), (copy), SMALL_BYTES)
OLD_COPY_ASYNC(cuMemcpy2DAsync)
OLD_COPY(cuMemcpy3D, (const void *copy), (copy), SMALL_BYTES)
OLD_COPY_ASYNC(cuMemcpy3DAsync)
OLD_COPY(cuMemcpyAtoA, (CUarray dst, unsigned to, CUarray src, unsigned from, unsigned size),
	 (dst, to, src, from, size), size)
OLD_COPY(cuMemcpyAtoD, (unsigned dst, CUarray src, unsigned from, unsigned size),
	 (dst, src, from, size), size)
OLD_COPY(cuMemcpyDtoA, (CUarray dst, unsigned to, unsigned src, unsigned size),
	 (dst, to, src, size), size)

#define FILLS(line, plane, type)                                                             \
	MOVES(line##_v2, FILLED, (CUdeviceptr dst, type value, size_t n), (dst, value, n),   \
	      n * sizeof value)                                                              \
	MOVES_ASYNC(line##Async, FILLED,                                                     \
		    (CUdeviceptr dst, type value, size_t n, CUstream hStream),               \
		    (dst, value, n, hStream), n * sizeof value)                              \
	MOVES(plane##_v2, FILLED_2D,                                                         \
	      (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),      \
	      (dst, pitch, value, width, height), width *height * sizeof value)              \
	MOVES_ASYNC(plane##Async, FILLED_2D,                                                 \
		    (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, \
		     CUstream hStream),                                                      \
		    (dst, pitch, value, width, height, hStream), width *height * sizeof value)
FILLS(cuMemsetD8, cuMemsetD2D8, unsigned char)
FILLS(cuMemsetD16, cuMemsetD2D16, unsigned short)
FILLS(cuMemsetD32, cuMemsetD2D32, unsigned)
