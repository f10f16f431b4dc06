// SPDX-License-Identifier: Apache-2.0
/* copy.c - copies and fills. They run beside kernels, at the card's copy rate. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>

#define COPY_START_NS 2000ull
#define FILL_RATE 20 /* a fill is that much faster than a copy over the bus */

static uint64_t copy_ns(uint32_t card, uint64_t n)
{
	uint64_t rate = drv.st->card[card].conf.copy_bytes_per_ms;

	return COPY_START_NS + (rate ? n / rate * 1000000 + n % rate * 1000000 / rate : 0);
}

static bool pageable(uint64_t addr)
{
	return block_find(addr) == NULL;
}

static bool on_card(uint64_t addr)
{
	const struct block *b = block_find(addr);

	return b && b->kind != BLOCK_HOST && b->kind != BLOCK_REGISTERED &&
	       b->kind != BLOCK_MANAGED;
}

static unsigned inside(uint64_t dst, uint64_t src)
{
	return on_card(dst) && on_card(src) ? SIM_OP_INSIDE : 0;
}

static bool in_bounds(uint64_t addr, uint64_t n)
{
	struct block *b = block_find(addr);

	return !b || addr + n <= b->va + b->size;
}

/* A pageable source is read when the call is made, as the driver stages it. */
static struct effect *copy_effect(uint64_t dst, uint64_t src, uint64_t n)
{
	struct effect *e = effect_new(EFF_COPY);

	if (!e)
		return NULL;
	e->dst = dst;
	e->src = src;
	e->n = n;
	if (!pageable(src))
		return e;
	e->n = n < DRV_KEEP ? n : DRV_KEEP;
	if (pageable(dst))
		e->n = n;
	e->snapshot = malloc(e->n);
	if (!e->snapshot) {
		free(e);
		return NULL;
	}
	memcpy(e->snapshot, (const void *)(uintptr_t)src, e->n);
	return e;
}

static CUresult copy(uint64_t dst, uint64_t src, uint64_t n, CUstream handle, bool wait)
{
	CUstream s = stream_of(handle);
	uint64_t index;
	CUresult rc = wait ? capture_unsafe() : CUDA_SUCCESS;
	uint32_t slot, gen;

	if (rc)
		return rc;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!n)
		return CUDA_SUCCESS;
	if (!dst || !src || !in_bounds(dst, n) || !in_bounds(src, n))
		return CUDA_ERROR_INVALID_VALUE;
	slot = s->slot;
	gen = s->gen;
	rc = submit_effect(s, SIM_COPY, SIM_OP_URGENT | inside(dst, src), copy_ns(s->ctx->card, n),
			   copy_effect(dst, src, n));
	/* a copy to pageable memory ends before the call does */
	if (rc || s->capture || (!wait && !pageable(dst)))
		return rc;
	index = drv.st->stream[slot].tail - 1;
	return stream_wait(slot, gen, index);
}

static CUresult fill(uint64_t dst, uint64_t value, unsigned width, uint64_t n, CUstream handle,
		     bool wait)
{
	CUstream s = stream_of(handle);
	struct effect *e;
	CUresult rc = wait ? capture_unsafe() : CUDA_SUCCESS;
	uint32_t slot, gen;

	if (rc)
		return rc;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!n)
		return CUDA_SUCCESS;
	if (!dst || dst % width || !block_find(dst) || !in_bounds(dst, n * width))
		return CUDA_ERROR_INVALID_VALUE;
	e = effect_new(EFF_FILL);
	if (e) {
		e->dst = dst;
		e->value = value;
		e->width = width;
		e->n = n;
	}
	slot = s->slot;
	gen = s->gen;
	rc = submit_effect(s, SIM_COPY, SIM_OP_URGENT | SIM_OP_INSIDE,
			   copy_ns(s->ctx->card, n * width / FILL_RATE), e);
	if (rc || !wait)
		return rc;
	return stream_wait(slot, gen, drv.st->stream[slot].tail - 1);
}

static CUresult rows(uint64_t dst, uint64_t pitch, uint64_t value, unsigned width, uint64_t w,
		     uint64_t h, CUstream handle, bool wait)
{
	CUresult rc = CUDA_SUCCESS;

	if (h > 1 && pitch < w * width)
		return CUDA_ERROR_INVALID_VALUE;
	if (pitch == w * width)
		return fill(dst, value, width, w * h, handle, wait);
	for (uint64_t row = 0; row < h && !rc; row++)
		rc = fill(dst + row * pitch, value, width, w, handle, wait);
	return rc;
}

#define COPY(name, params, dst, src, stream, wait)                                               \
	CUresult name params                                                                     \
	{                                                                                        \
		ENTER(NEED_CTX);                                                                 \
		return drv_leave(copy((uint64_t)(uintptr_t)(dst), (uint64_t)(uintptr_t)(src), n, \
				      stream, wait));                                            \
	}
COPY(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t n), dst, src, NULL, true)
COPY(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t n), dst, src, NULL, true)
COPY(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t n), dst, src, NULL, true)
COPY(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n), dst, src, NULL, true)
COPY(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream hStream), dst, src,
     hStream, false)
COPY(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t n, CUstream hStream), dst, src,
     hStream, false)
COPY(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t n, CUstream hStream), dst, src,
     hStream, false)
COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream hStream), dst, src,
     hStream, false)

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n)
{
	ENTER(NEED_CTX);
	if (!drv_ctx_valid(dctx) || !drv_ctx_valid(sctx))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	return drv_leave(copy(dst, src, n, NULL, true));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx,
			   size_t n, CUstream hStream)
{
	ENTER(NEED_CTX);
	if (!drv_ctx_valid(dctx) || !drv_ctx_valid(sctx))
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	return drv_leave(copy(dst, src, n, hStream, false));
}

/* Copies of rows, of arrays and of several pieces take their time; contents are not moved. */
static CUresult pieces(uint64_t n, unsigned flags, CUstream handle, bool wait)
{
	CUstream s = stream_of(handle);
	CUresult rc = wait ? capture_unsafe() : CUDA_SUCCESS;
	uint32_t slot, gen;
	uint64_t index;
	bool captured;

	if (rc || !s)
		return rc ? rc : CUDA_ERROR_INVALID_HANDLE;
	slot = s->slot;
	gen = s->gen;
	captured = s->capture;
	rc = stream_submit(
		s, &(struct work){.kind = SIM_COPY, .flags = flags, .ns = copy_ns(s->ctx->card, n)},
		&index);
	return rc || captured || !wait ? rc : stream_wait(slot, gen, index);
}

#define PIECES(name, params, ok, bytes, flags, stream, wait)               \
	CUresult name params                                               \
	{                                                                  \
		ENTER(NEED_CTX);                                           \
		return drv_leave((ok) ? pieces(bytes, flags, stream, wait) \
				      : CUDA_ERROR_INVALID_VALUE);         \
	}
#define AREA(c) (c)->WidthInBytes *(c)->Height
/* As the call itself says it. */
#define HOST_MEMORY 1
#define ENDS(c) \
	((c)->dstMemoryType != HOST_MEMORY && (c)->srcMemoryType != HOST_MEMORY ? SIM_OP_INSIDE : 0)
PIECES(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *c), c, AREA(c), ENDS(c), NULL, true)
PIECES(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *c), c, AREA(c), ENDS(c), NULL, true)
PIECES(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *c, CUstream hStream), c, AREA(c), ENDS(c), hStream,
       false)
PIECES(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *c), c, AREA(c) * c->Depth, ENDS(c), NULL, true)
PIECES(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *c, CUstream hStream), c, AREA(c) * c->Depth,
       ENDS(c), hStream, false)
PIECES(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *c), c, AREA(c) * c->Depth, ENDS(c), NULL, true)
PIECES(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *c, CUstream hStream), c, AREA(c) * c->Depth,
       ENDS(c), hStream, false)
PIECES(cuMemcpyAtoA_v2, (CUarray dst, size_t to, CUarray src, size_t from, size_t n),
       dst &&src &&to + 1 && from + 1, n, SIM_OP_INSIDE, NULL, true)
PIECES(cuMemcpyAtoD_v2, (CUdeviceptr dst, CUarray src, size_t from, size_t n), dst &&src &&from + 1,
       n, SIM_OP_INSIDE, NULL, true)
PIECES(cuMemcpyDtoA_v2, (CUarray dst, size_t to, CUdeviceptr src, size_t n), dst &&src &&to + 1, n,
       SIM_OP_INSIDE, NULL, true)

static uint64_t sum(const size_t *sizes, size_t n)
{
	uint64_t all = 0;

	for (size_t i = 0; i < n; i++)
		all += sizes[i];
	return all;
}

CUresult cuMemcpyBatchAsync_v2(const CUdeviceptr *dst, const CUdeviceptr *src, const size_t *sizes,
			       size_t n, void *attrs, size_t *attrs_at, size_t nattrs,
			       CUstream hStream)
{
	ENTER(NEED_CTX);
	if (!dst || !src || !sizes || !n || !attrs || !attrs_at || !nattrs)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(pieces(sum(sizes, n), inside(*dst, *src), hStream, false));
}

CUresult cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags,
				 CUstream hStream)
{
	uint64_t all = 0;

	ENTER(NEED_CTX);
	if (!ops || !n || flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < n; i++)
		all += ops[i].extent.width * ops[i].extent.height * ops[i].extent.depth;
	return drv_leave(pieces(all, SIM_OP_INSIDE, hStream, false));
}

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, void *attr,
				     CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(attr ? copy(dst, src, n, hStream, false) : CUDA_ERROR_INVALID_VALUE);
}

#define FILL(bits, type)                                                                     \
	CUresult cuMemsetD##bits##_v2(CUdeviceptr dst, type v, size_t n)                     \
	{                                                                                    \
		ENTER(NEED_CTX);                                                             \
		return drv_leave(fill(dst, v, bits / 8, n, NULL, true));                     \
	}                                                                                    \
	CUresult cuMemsetD##bits##Async(CUdeviceptr dst, type v, size_t n, CUstream hStream) \
	{                                                                                    \
		ENTER(NEED_CTX);                                                             \
		return drv_leave(fill(dst, v, bits / 8, n, hStream, false));                 \
	}
/* The rows of a pitched fill take as long as those of a plain one. */
#define FILL_2D(bits, type)                                                                        \
	CUresult cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type v, size_t w, size_t h) \
	{                                                                                          \
		ENTER(NEED_CTX);                                                                   \
		return drv_leave(rows(dst, pitch, v, bits / 8, w, h, NULL, true));                 \
	}                                                                                          \
	CUresult cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type v, size_t w,         \
					  size_t h, CUstream hStream)                              \
	{                                                                                          \
		ENTER(NEED_CTX);                                                                   \
		return drv_leave(rows(dst, pitch, v, bits / 8, w, h, hStream, false));             \
	}
FILL_2D(8, unsigned char)
FILL_2D(16, unsigned short)
FILL_2D(32, unsigned)
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

/* Managed memory lies on the host here: there is nothing to move. */
static CUresult advise(CUdeviceptr dptr, size_t n)
{
	struct block *b = block_find(dptr);

	return b && b->kind == BLOCK_MANAGED && in_bounds(dptr, n) ? CUDA_SUCCESS
								   : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise(CUdeviceptr dptr, size_t n, int advice, CUdevice dev)
{
	(void)advice;
	(void)dev;
	ENTER(NEED_CTX);
	return drv_leave(advise(dptr, n));
}

CUresult cuMemAdvise_v2(CUdeviceptr dptr, size_t n, int advice, CUmemLocation location)
{
	return cuMemAdvise(dptr, n, advice, location.id);
}

CUresult cuMemPrefetchAsync(CUdeviceptr dptr, size_t n, CUdevice dev, CUstream hStream)
{
	CUstream s;
	CUresult rc;

	(void)dev;
	ENTER(NEED_CTX);
	s = stream_of(hStream);
	rc = s ? advise(dptr, n) : CUDA_ERROR_INVALID_HANDLE;
	if (!rc)
		rc = stream_submit(s,
				   &(struct work){.kind = SIM_COPY, .ns = copy_ns(s->ctx->card, n)},
				   NULL);
	return drv_leave(rc);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr dptr, size_t n, CUmemLocation location, unsigned flags,
			       CUstream hStream)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : cuMemPrefetchAsync(dptr, n, location.id, hStream);
}
