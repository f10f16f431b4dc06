// SPDX-License-Identifier: Apache-2.0
/* hostmem.c - page-locked host memory, and memory shared between processes.
 * Host addresses and device addresses of host memory are the same. */
#define _GNU_SOURCE
#include "local.h"

#include <string.h>
#include <sys/mman.h>

static struct block *host_block(const void *p, enum block_kind kind)
{
	struct block *b = block_find((uintptr_t)p);

	return b && b->kind == kind ? b : NULL;
}

static CUresult host_alloc(void **pp, size_t size, unsigned flags)
{
	struct block b = {.kind = BLOCK_HOST, .flags = flags};
	void *p;

	if (!pp || !size)
		return CUDA_ERROR_INVALID_VALUE;
	b.size = (size + 4095) / 4096 * 4096;
	p = mmap(NULL, b.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	b.va = (uintptr_t)p;
	b.ctx = drv_current();
	if (!block_add(&b)) {
		munmap(p, b.size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*pp = p;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t size, unsigned flags)
{
	CUresult rc;

	ENTER(NEED_CTX);
	rc = capture_unsafe();
	return drv_leave(rc ? rc : host_alloc(pp, size, flags));
}

CUresult cuMemAllocHost_v2(void **pp, size_t size)
{
	CUresult rc;

	ENTER(NEED_CTX);
	rc = capture_unsafe();
	return drv_leave(rc ? rc : host_alloc(pp, size, 0));
}

CUresult cuMemFreeHost(void *p)
{
	struct block *b;

	ENTER(NEED_CTX);
	b = host_block(p, BLOCK_HOST);
	if (!b || b->va != (uintptr_t)p)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	mem_free(b);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned flags)
{
	ENTER(NEED_CTX);
	if (!dptr || flags || (!host_block(p, BLOCK_HOST) && !host_block(p, BLOCK_REGISTERED)))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*dptr = (uintptr_t)p;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned *flags, void *p)
{
	struct block *b;

	ENTER(NEED_CTX);
	b = host_block(p, BLOCK_HOST);
	if (!flags || !b)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = b->flags;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned flags)
{
	struct block b = {.va = (uintptr_t)p,
			  .size = size,
			  .kind = BLOCK_REGISTERED,
			  .flags = flags};

	ENTER(NEED_CTX);
	if (!p || !size)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (block_find((uintptr_t)p))
		return drv_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	b.ctx = drv_current();
	return drv_leave(block_add(&b) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemHostUnregister(void *p)
{
	struct block *b;

	ENTER(NEED_CTX);
	b = host_block(p, BLOCK_REGISTERED);
	if (!b || b->va != (uintptr_t)p)
		return drv_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	block_remove(b);
	return drv_leave(CUDA_SUCCESS);
}

/* A handle names an entry of the model; the importer gets an address and no
 * bytes: the exporter alone is charged. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr)
{
	struct block *b;
	uint64_t key = 0;

	ENTER(NEED_CTX);
	b = block_find(dptr);
	if (!handle || !b || b->kind != BLOCK_LINEAR)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	drv_model_lock();
	for (uint32_t i = 0; i < SIM_MAX_CTX && !key; i++) {
		struct sim_ipc *e = &drv.st->ipc[i];

		if (e->key)
			continue;
		key = ++drv.st->next_key;
		*e = (struct sim_ipc){.key = key,
				      .proc = (uint32_t)drv.proc,
				      .card = b->card,
				      .size = b->size};
	}
	drv_model_unlock();
	if (!key)
		return drv_leave(CUDA_ERROR_OPERATING_SYSTEM);
	memset(handle, 0, sizeof(*handle));
	memcpy(handle->reserved, &key, sizeof(key));
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned flags)
{
	struct block b = {.kind = BLOCK_IPC};
	bool own = false;
	uint64_t key;

	ENTER(NEED_CTX);
	if (!dptr || flags != 1)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&key, handle.reserved, sizeof(key));
	drv_model_lock();
	for (uint32_t i = 0; i < SIM_MAX_CTX; i++) {
		const struct sim_ipc *e = &drv.st->ipc[i];

		if (!key || e->key != key)
			continue;
		b.size = e->size;
		b.card = e->card;
		own = e->proc == (uint32_t)drv.proc;
	}
	drv_model_unlock();
	if (own)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!b.size || b.card != drv_current()->card)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	b.ctx = drv_current();
	b.va = va_take(b.size, DRV_PAGE);
	if (!b.va || !block_add(&b))
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*dptr = b.va;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	struct block *b;

	ENTER(NEED_CTX);
	b = block_find(dptr);
	if (!b || b->kind != BLOCK_IPC || b->va != dptr)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	block_remove(b);
	return drv_leave(CUDA_SUCCESS);
}
