// SPDX-License-Identifier: Apache-2.0
/* memory.c - device memory in one piece: linear, pitched, managed. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static int take(uint32_t card, uint64_t bytes)
{
	int rc;

	drv_model_lock();
	rc = sim_mem_add(drv.st, (uint32_t)drv.proc, card, bytes);
	drv_model_unlock();
	return rc;
}

/* A process that is short gives up what its pools hold unused, and tries again. */
CUresult mem_charge(uint32_t card, uint64_t bytes)
{
	dmabuf_settle();
	if (!bytes || take(card, bytes) == 0)
		return CUDA_SUCCESS;
	pool_release_unused(card);
	return take(card, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void mem_uncharge(uint32_t card, uint64_t bytes)
{
	if (!bytes)
		return;
	drv_model_lock();
	sim_mem_sub(drv.st, (uint32_t)drv.proc, card, bytes);
	drv_model_unlock();
}

/* Small allocations share device pages; the card sees whole pages. */
static CUresult charge_small(uint32_t card, int64_t delta)
{
	uint64_t want = round_up(drv.small_bytes[card] + (uint64_t)delta, DRV_PAGE);
	CUresult rc = CUDA_SUCCESS;

	if (want > drv.small_charged[card])
		rc = mem_charge(card, want - drv.small_charged[card]);
	else
		mem_uncharge(card, drv.small_charged[card] - want);
	if (rc)
		return rc;
	drv.small_charged[card] = want;
	drv.small_bytes[card] += (uint64_t)delta;
	return CUDA_SUCCESS;
}

static CUresult place(CUcontext ctx, struct block b, struct block **out)
{
	if (b.kind == BLOCK_MANAGED) {
		void *p = mmap(NULL, b.size, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		b.va = p == MAP_FAILED ? 0 : (uintptr_t)p;
	} else {
		b.va = va_take(round_up(b.size, b.small ? 512 : DRV_PAGE),
			       b.small ? 512 : DRV_PAGE);
	}
	if (!b.va)
		return CUDA_ERROR_OUT_OF_MEMORY;
	b.ctx = ctx;
	*out = block_add(&b);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult mem_alloc(CUcontext ctx, uint64_t size, enum block_kind kind, struct block **out)
{
	struct block b = {.size = size, .kind = kind, .card = ctx->card};
	CUresult rc;

	if (size > (1ull << 46))
		return CUDA_ERROR_OUT_OF_MEMORY;
	b.small = size <= DRV_SMALL && kind != BLOCK_MANAGED;
	if (b.small)
		rc = charge_small(ctx->card, (int64_t)round_up(size, 512));
	else
		rc = mem_charge(ctx->card, b.charged = round_up(size, DRV_PAGE));
	if (rc && kind == BLOCK_MANAGED)
		rc = b.charged = 0; /* its pages stay with the host */
	if (rc)
		return rc;
	rc = place(ctx, b, out);
	if (rc && b.small)
		charge_small(ctx->card, -(int64_t)round_up(size, 512));
	else if (rc)
		mem_uncharge(ctx->card, b.charged);
	return rc;
}

void mem_free(struct block *b)
{
	if (dmabuf_keeps(b))
		return;
	if (b->small)
		charge_small(b->card, -(int64_t)round_up(b->size, 512));
	else if (b->export)
		export_leave(b->export);
	else
		mem_uncharge(b->card, b->charged);
	if (b->kind == BLOCK_MANAGED || b->kind == BLOCK_HOST)
		munmap((void *)(uintptr_t)b->va, b->size);
	else if (b->kind != BLOCK_REGISTERED)
		va_give(b->va, round_up(b->size, b->small ? 512 : DRV_PAGE));
	block_remove(b);
}

/* What a context allocated goes with it. Mappings go with their handles. */
void mem_drop_context(CUcontext ctx)
{
	struct block *b;
	size_t i = 0;

	while ((b = block_at(i)) != NULL) {
		if (b->ctx != ctx || b->kind == BLOCK_RESERVED || b->kind == BLOCK_MAPPED)
			i++;
		else if (b->kind == BLOCK_POOL)
			pool_free(b);
		else
			mem_free(b);
	}
}

static CUresult info(size_t *free_bytes, size_t *total)
{
	uint32_t card = drv_current()->card;
	const struct sim_card_config *c = &drv.st->card[card].conf;
	uint64_t used, most = 0, of_most = 0;

	dmabuf_settle();
	drv_model_lock();
	sim_reap(drv.st, false);
	used = sim_mem_used(drv.st, card);
	sim_limit_of(drv.st, (uint32_t)drv.proc, card, &most, &of_most);
	drv_model_unlock();
	*total = c->memory - c->reserved;
	*free_bytes = used < c->memory ? c->memory - used : 0;
	if (most && most < *total)
		*total = most;
	if (most && most - of_most < *free_bytes)
		*free_bytes = most - of_most;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTER(NEED_CTX);
	return drv_leave(free_bytes && total ? info(free_bytes, total) : CUDA_ERROR_INVALID_VALUE);
}

/* The interface of 2007: counts of 32 bits, which saturate. */
CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
	size_t f = 0, t = 0;

	ENTER(NEED_CTX);
	if (!free_bytes || !total)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	info(&f, &t);
	*free_bytes = f > 0xffffffffu ? 0xffffffffu : (unsigned)f;
	*total = t > 0xffffffffu ? 0xffffffffu : (unsigned)t;
	return drv_leave(CUDA_SUCCESS);
}

static CUresult alloc_call(CUdeviceptr *dptr, uint64_t size, enum block_kind kind)
{
	struct block *b;
	CUresult rc;

	if (!dptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	rc = capture_unsafe();
	if (!rc)
		rc = mem_alloc(drv_current(), size, kind, &b);
	if (!rc)
		*dptr = b->va;
	return rc;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size)
{
	ENTER(NEED_CTX);
	return drv_leave(alloc_call(dptr, size, BLOCK_LINEAR));
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size, unsigned flags)
{
	ENTER(NEED_CTX);
	if (flags != 1 && flags != 2)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(alloc_call(dptr, size, BLOCK_MANAGED));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
			    unsigned element)
{
	ENTER(NEED_CTX);
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*pitch = round_up(width, 512);
	return drv_leave(alloc_call(dptr, *pitch * height, BLOCK_LINEAR));
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct block *b;
	CUresult rc;

	ENTER(NEED_CTX);
	if (!dptr)
		return drv_leave(CUDA_SUCCESS);
	rc = capture_unsafe();
	b = block_find(dptr);
	if (!rc && b && b->va == dptr && (b->imported || b->external)) {
		return drv_leave(export_free_import(b));
	}
	if (!rc && (!b || b->va != dptr || b->freeing ||
		    (b->kind != BLOCK_LINEAR && b->kind != BLOCK_MANAGED && b->kind != BLOCK_POOL)))
		rc = CUDA_ERROR_INVALID_VALUE;
	if (rc)
		return drv_leave(rc);
	b->freeing = true;
	/* a free waits for the card's work, so that nothing running can still use the memory */
	rc = drv_ctx_sync(drv_ctx_valid(b->ctx) ? b->ctx : drv_current());
	b = block_find(dptr);
	if (b && b->kind == BLOCK_POOL)
		pool_free(b);
	else if (b)
		mem_free(b);
	return drv_leave(rc);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
	struct block *b;

	ENTER(NEED_CTX);
	b = block_find(dptr);
	if (!b)
		return drv_leave(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = b->va;
	if (size)
		*size = b->size;
	return drv_leave(CUDA_SUCCESS);
}

static CUresult pointer_attribute(void *data, int attribute, CUdeviceptr ptr)
{
	struct block *b = block_find(ptr);
	bool host;

	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	if (!b)
		return CUDA_ERROR_INVALID_VALUE;
	host = b->kind == BLOCK_HOST || b->kind == BLOCK_REGISTERED;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = b->ctx;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = host ? 1 : 2;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = ptr;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!host && b->kind != BLOCK_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)ptr;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = b->kind == BLOCK_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = b->ctx ? b->ctx->dev : 0;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = b->va;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = b->size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned char *)data = 1;
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
	ENTER(NEED_CTX);
	return drv_leave(pointer_attribute(data, attribute, ptr));
}

CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **data, CUdeviceptr ptr)
{
	ENTER(NEED_CTX);
	if (!n || !attributes || !data)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	/* attributes that do not apply read as zero here, they are no error */
	for (unsigned i = 0; i < n; i++)
		if (pointer_attribute(data[i], attributes[i], ptr) && data[i])
			*(unsigned *)data[i] = 0;
	return drv_leave(CUDA_SUCCESS);
}
