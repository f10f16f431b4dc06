// SPDX-License-Identifier: Apache-2.0
/*
 * export.c - memory that is exported and imported. An import has a handle of its own, in the
 * process of the export, too, and is a reference to the same memory. Pools and their pointers are
 * imported in their own process alone.
 */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TYPE_FD = 1, TYPE_FABRIC = 8 };

/* Handles of exports in this process. */
static struct vmm_handle *exported;

void export_leave(uint64_t key)
{
	drv_model_lock();
	sim_export_leave(drv.st, (uint32_t)drv.proc, key);
	drv_model_unlock();
}

/* The process has the memory as long as one of its handles has it. */
void export_drop(struct vmm_handle *v)
{
	bool last = true;

	for (struct vmm_handle **link = &exported; *link;)
		if (*link == v) {
			*link = v->next;
		} else {
			last &= (*link)->export != v->export;
			link = &(*link)->next;
		}
	if (last)
		export_leave(v->export);
}

static void add(struct vmm_handle *v)
{
	v->next = exported;
	exported = v;
}

/* As a descriptor, or as bytes; false: there are too many. */
static bool hand_out(void *to, uint64_t key, int type)
{
	int fd;

	if (type == TYPE_FABRIC) {
		memset(to, 0, 64);
		memcpy(to, &key, sizeof(key));
		return true;
	}
	fd = sim_export_open(drv.st, key);
	*(int *)to = fd;
	return fd >= 0;
}

static uint64_t key_of(void *from, int type)
{
	uint64_t key = 0;

	if (type == TYPE_FABRIC)
		memcpy(&key, from, sizeof(key));
	else if (type == TYPE_FD)
		key = sim_export_named((int)(intptr_t)from);
	return key;
}

uint64_t export_new(uint32_t card, uint64_t bytes)
{
	uint64_t key;

	drv_model_lock();
	key = sim_export_add(drv.st, (uint32_t)drv.proc, card, bytes);
	drv_model_unlock();
	return key;
}

uint64_t export_key(struct vmm_handle *v)
{
	if (!v->export) {
		v->export = export_new(v->card, v->size);
		if (v->export)
			add(v);
	}
	return v->export;
}

CUresult cuMemExportToShareableHandle(void *to, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags)
{
	struct vmm_handle *v;

	ENTER(NEED_INIT);
	v = vmm_of(handle);
	if (!to || !v || v->host || flags || (type != TYPE_FD && type != TYPE_FABRIC) ||
	    !(v->types & type))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(export_key(v) && hand_out(to, v->export, type) ? CUDA_SUCCESS
									: CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, int type)
{
	struct vmm_handle *v;
	bool found;

	ENTER(NEED_INIT);
	if (drv.proc < 0)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	v = handle && from ? calloc(1, sizeof(*v)) : NULL;
	if (!v)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	v->export = key_of(from, type);
	drv_model_lock();
	found = sim_export_join(drv.st, (uint32_t)drv.proc, v->export, &v->card, &v->size);
	drv_model_unlock();
	if (!found) {
		free(v);
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	}
	v->magic = MAGIC_VMM;
	v->refs = 1;
	while (v->device < drv.ndevices - 1 && drv.card[v->device] != v->card)
		v->device++;
	add(v);
	*handle = (uintptr_t)v;
	return drv_leave(CUDA_SUCCESS);
}

/* The number of an exported pool is that of an export of no bytes. */
CUresult cuMemPoolExportToShareableHandle(void *to, CUmemoryPool pool, int type,
					  unsigned long long flags)
{
	ENTER(NEED_INIT);
	if (drv.proc < 0)
		return drv_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!to || !pool || pool->magic != MAGIC_POOL || flags || type != TYPE_FD ||
	    !(pool->types & type))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!pool->export)
		pool->export = export_new(pool->card, 0);
	return drv_leave(pool->export && hand_out(to, pool->export, type)
				 ? CUDA_SUCCESS
				 : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *from, int type,
					    unsigned long long flags)
{
	uint64_t key;
	CUmemoryPool of;

	ENTER(NEED_INIT);
	if (!pool || type != TYPE_FD || flags)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	key = key_of(from, type);
	of = key ? pool_exported(key) : NULL;
	*pool = of ? pool_import(of) : NULL;
	return drv_leave(*pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemPoolExportPointer(void *data, CUdeviceptr ptr)
{
	struct block *b;

	ENTER(NEED_INIT);
	b = block_find(ptr);
	if (!data || !b || b->kind != BLOCK_POOL || !b->pool->types)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	memset(data, 0, 64);
	memcpy(data, &b->va, sizeof(b->va));
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool pool, const void *data)
{
	struct block copy = {.kind = BLOCK_IPC, .pool = pool}, *b;

	ENTER(NEED_CTX);
	if (!ptr || !pool || pool->magic != MAGIC_POOL || !pool->of || !data)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&copy.imported, data, sizeof(copy.imported));
	b = block_find(copy.imported);
	if (!b || b->pool != pool->of)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	copy.size = b->size;
	copy.card = b->card;
	copy.va = va_take(b->size, DRV_PAGE);
	if (!copy.va || !block_add(&copy))
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	b->exports++;
	*ptr = copy.va;
	return drv_leave(CUDA_SUCCESS);
}

static void drop_import(struct block *b)
{
	struct block *of = block_find(b->imported);

	block_remove(b);
	if (of && --of->exports == 0 && of->gone)
		mem_free(of);
}

/* An imported pointer is freed. The imported pool keeps its memory. */
CUresult export_free_import(struct block *b)
{
	struct vmm_handle *v = b->external;

	if (b->freeing)
		return CUDA_ERROR_INVALID_VALUE;
	if (v) {
		block_remove(b);
		v->maps--;
		vmm_drop_if_unused(v);
		return CUDA_SUCCESS;
	}
	b->freeing = true;
	if (!b->pool)
		drop_import(b);
	return CUDA_SUCCESS;
}

void export_end_imports(CUmemoryPool pool)
{
	struct block *b;
	size_t i = 0;

	while ((b = block_at(i)) != NULL) {
		if (!b->imported || b->pool != pool) {
			i++;
		} else if (b->freeing) {
			drop_import(b);
			i = 0;
		} else {
			b->pool = NULL;
		}
	}
}

/* Memory by a descriptor of any API: here of CUDA alone. The descriptor is the driver's from then on. */
CUresult cuImportExternalMemory(CUexternalMemory *memory,
				const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
	CUmemGenericAllocationHandle h;
	CUresult rc;

	if (!memory || !desc || desc->type != TYPE_FD)
		return CUDA_ERROR_INVALID_VALUE;
	rc = cuMemImportFromShareableHandle(&h, (void *)(intptr_t)desc->handle.fd, TYPE_FD);
	if (rc)
		return rc;
	close(desc->handle.fd);
	*memory = (CUexternalMemory)(uintptr_t)h;
	return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory memory,
					 const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
	struct block b = {.kind = BLOCK_IPC};

	ENTER(NEED_CTX);
	b.external = vmm_of((uintptr_t)memory);
	if (!ptr || !desc || !b.external || desc->offset + desc->size > b.external->size)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	b.size = desc->size;
	b.card = b.external->card;
	b.va = va_take(b.size, DRV_PAGE);
	if (!b.va || !block_add(&b))
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	b.external->maps++;
	*ptr = b.va;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	return cuMemRelease((uintptr_t)memory);
}
