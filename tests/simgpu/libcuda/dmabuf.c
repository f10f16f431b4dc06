// SPDX-License-Identifier: Apache-2.0
/* dmabuf.c - descriptors of ranges of addresses. They keep memory as an export does. The process
 * itself keeps small allocations and memory of pools, until its next call after the close. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <unistd.h>

#define HANDLE_TYPE_DMA_BUF 1
#define FIRST_KEY (1ull << 62) /* above the numbers of exports */

struct kept {
	uint64_t key; /* sim_export_open */
	struct block *block;
	struct kept *next;
};
static struct kept *all;

void dmabuf_settle(void)
{
	for (struct kept **link = &all, *k; (k = *link) != NULL;) {
		if (sim_export_is_open(drv.st, k->key)) {
			link = &k->next;
			continue;
		}
		*link = k->next;
		if (--k->block->exports == 0 && k->block->gone)
			mem_free(k->block);
		free(k);
	}
}

bool dmabuf_keeps(struct block *b)
{
	if (!b->exports)
		return false;
	b->gone = b->freeing = true;
	b->ctx = NULL;
	return true;
}

static bool keep_here(uint64_t key, struct block *b)
{
	struct kept *k = calloc(1, sizeof(*k));

	if (!k)
		return false;
	*k = (struct kept){key, b, all};
	b->exports++;
	all = k;
	return true;
}

/* The descriptor of this key keeps the block. */
static bool keep(int fd, uint64_t key, struct block *b)
{
	if (b->handle)
		return b->handle->host ||
		       (export_key(b->handle) && sim_export_has_range(fd, b->handle->export));
	if (b->kind != BLOCK_LINEAR || b->small)
		return keep_here(key, b);
	if (!b->export)
		b->export = export_new(b->card, b->charged);
	return b->export && sim_export_has_range(fd, b->export);
}

static bool exportable(const struct block *b)
{
	return b && !b->freeing &&
	       (b->kind == BLOCK_LINEAR || b->kind == BLOCK_POOL || b->kind == BLOCK_MAPPED);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, int type,
				       unsigned long long flags)
{
	long page = sysconf(_SC_PAGESIZE);
	static uint32_t exports;
	struct block *b = NULL;
	CUdeviceptr at = dptr;
	uint64_t key;
	int fd;

	ENTER(NEED_CTX);
	if (!handle || type != HANDLE_TYPE_DMA_BUF || flags > 1 || !size || dptr % page ||
	    size % page)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (; at < dptr + size; at = b->va + b->size) {
		b = block_find(at);
		if (!exportable(b))
			return drv_leave(CUDA_ERROR_INVALID_VALUE);
	}
	key = FIRST_KEY | (uint64_t)getpid() << 32 | ++exports;
	fd = sim_export_open(drv.st, key);
	if (fd < 0)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	for (at = dptr; at < dptr + size; at = b->va + b->size) {
		b = block_find(at);
		if (!keep(fd, key, b)) {
			close(fd);
			return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
		}
	}
	*(int *)handle = fd;
	return drv_leave(CUDA_SUCCESS);
}
