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

#define MOVED(real, stream, kind, bytes, returns_late, call)                                    \
	do {                                                                                    \
		vgpu_need_cuda();                                                               \
		if (!(real))                                                                    \
			return CUDA_ERROR_NO_DEVICE;                                            \
		size_t moved = (bytes);                                                         \
		if (moved < SMALL_BYTES)                                                        \
			return call;                                                            \
		GATED_CALL(real, stream, bytes_key(kind, moved), UNKNOWN_COPY_NS, returns_late, \
			   call);                                                               \
	} while (0)

/* The bytes of a copy that is the card's work; 0: it is the copy engines', between card and
 * host or another card, or too small to count. That ends the batch of the stream. */
static size_t if_inside(bool inside, size_t bytes, CUstream stream)
{
	if (inside || bytes < SMALL_BYTES)
		return bytes;
	if (__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED))
		vgpu_gate_boundary(stream, true);
	return 0;
}

static bool asks(void)
{
	return __atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED) && vgpu_real.cuPointerGetAttribute;
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
	if (bytes < SMALL_BYTES || !asks())
		return 0;
	return if_inside(in_card(dst) && in_card(src) && one_card(dst, src), bytes, stream);
}

/* Both are in a card's memory. */
static size_t peers(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	return if_inside(bytes < SMALL_BYTES || !asks() || one_card(dst, src), bytes, stream);
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

/* Copies of before CUDA 3.2: each is held, wherever it goes. */
#define OLD_BYTES SMALL_BYTES

/* bytes may name the parameters. */
#define COPY(name, params, args, per_thread, bytes)                                      \
	CUresult name params                                                             \
	{                                                                                \
		CUstream stream = vgpu_stream(NULL, per_thread);                         \
                                                                                         \
		MOVED(vgpu_real.name, stream, COPIED, bytes, true, vgpu_real.name args); \
	}
#define COPY_ASYNC(name, params, args, per_thread, bytes)                                 \
	CUresult name params                                                              \
	{                                                                                 \
		CUstream stream = vgpu_stream(hStream, per_thread);                       \
                                                                                          \
		MOVED(vgpu_real.name, stream, COPIED, bytes, false, vgpu_real.name args); \
	}
/* In both kinds of default stream. */
#define COPIES(name, params, args, bytes)      \
	COPY(name, params, args, false, bytes) \
	COPY(name##_ptds, params, args, true, bytes)
#define COPIES_ASYNC(name, params, args, bytes)      \
	COPY_ASYNC(name, params, args, false, bytes) \
	COPY_ASYNC(name##_ptsz, params, args, true, bytes)

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
COPY(cuMemcpy2D, (const void *copy), (copy), false, OLD_BYTES)
COPY(cuMemcpy2DUnaligned, (const void *copy), (copy), false, OLD_BYTES)
COPY_ASYNC(cuMemcpy2DAsync, (const void *copy, CUstream hStream), (copy, hStream), false, OLD_BYTES)
COPY(cuMemcpy3D, (const void *copy), (copy), false, OLD_BYTES)
COPY_ASYNC(cuMemcpy3DAsync, (const void *copy, CUstream hStream), (copy, hStream), false, OLD_BYTES)
COPY(cuMemcpyAtoA, (CUarray dst, unsigned to, CUarray src, unsigned from, unsigned size),
     (dst, to, src, from, size), false, size)
COPY(cuMemcpyAtoD, (unsigned dst, CUarray src, unsigned from, unsigned size),
     (dst, src, from, size), false, size)
COPY(cuMemcpyDtoA, (CUarray dst, unsigned to, unsigned src, unsigned size), (dst, to, src, size),
     false, size)

#define FILL(name, type, per_thread)                                                           \
	CUresult name(CUdeviceptr dst, type value, size_t n)                                   \
	{                                                                                      \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), FILLED, n * sizeof value, \
		      true, vgpu_real.name(dst, value, n));                                    \
	}
#define FILL_ASYNC(name, type, per_thread)                                                       \
	CUresult name(CUdeviceptr dst, type value, size_t n, CUstream stream)                    \
	{                                                                                        \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), FILLED, n * sizeof value, \
		      false, vgpu_real.name(dst, value, n, stream));                             \
	}
#define FILL_2D(name, type, per_thread)                                                       \
	CUresult name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height) \
	{                                                                                     \
		MOVED(vgpu_real.name, vgpu_stream(NULL, per_thread), FILLED_2D,               \
		      width *height * sizeof value, true,                                     \
		      vgpu_real.name(dst, pitch, value, width, height));                      \
	}
#define FILL_2D_ASYNC(name, type, per_thread)                                                 \
	CUresult name(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, \
		      CUstream stream)                                                        \
	{                                                                                     \
		MOVED(vgpu_real.name, vgpu_stream(stream, per_thread), FILLED_2D,             \
		      width *height * sizeof value, false,                                    \
		      vgpu_real.name(dst, pitch, value, width, height, stream));              \
	}
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
