// SPDX-License-Identifier: Apache-2.0
/* fill.c - takes memory until it is refused, by each way there is. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_CHUNK (2ull << 20)
#define PITCH_WIDTH (1ull << 20)
#define ARRAY_WIDTH 16384ull
#define DEFAULT_CHUNK (256ull << 20)

struct piece {
	CUdeviceptr ptr;
	CUarray array;
	CUmemGenericAllocationHandle handle;
	uint64_t size;
	struct piece *next;
};

static CUmemoryPool pool;

static CUmemAllocationProp device_prop(CUdevice dev)
{
	CUmemAllocationProp p;

	memset(&p, 0, sizeof(p));
	p.type = 1;
	p.location.type = 1;
	p.location.id = dev;
	return p;
}

static CUresult take_vmm(struct piece *p, CUdevice dev)
{
	CUmemAllocationProp prop = device_prop(dev);
	CUmemAccessDesc access = {{1, dev}, 3};
	CUresult rc = cu.MemCreate(&p->handle, p->size, &prop, 0);

	if (rc)
		return rc;
	must(cu.MemAddressReserve(&p->ptr, p->size, 0, 0, 0), "cuMemAddressReserve");
	must(cu.MemMap(p->ptr, p->size, 0, p->handle, 0), "cuMemMap");
	must(cu.MemSetAccess(p->ptr, p->size, &access, 1), "cuMemSetAccess");
	return CUDA_SUCCESS;
}

static CUresult take_pool(struct piece *p, CUdevice dev)
{
	CUmemPoolProps props;

	if (!pool) {
		memset(&props, 0, sizeof(props));
		props.allocType = 1;
		props.location.type = 1;
		props.location.id = dev;
		must(cu.MemPoolCreate(&pool, &props), "cuMemPoolCreate");
	}
	return cu.MemAllocFromPoolAsync(&p->ptr, p->size, pool, NULL);
}

static CUresult take_array(struct piece *p)
{
	CUDA_ARRAY_DESCRIPTOR d = {.Width = ARRAY_WIDTH, .Format = 0x20, .NumChannels = 4};

	d.Height = p->size / (ARRAY_WIDTH * 16);
	return cu.ArrayCreate(&p->array, &d);
}

static CUresult take(const struct worker *w, struct piece *p)
{
	const char *r = w->route;
	size_t pitch = 0;

	if (strcmp(r, "linear") == 0)
		return cu.MemAlloc(&p->ptr, p->size);
	if (strcmp(r, "managed") == 0)
		return cu.MemAllocManaged(&p->ptr, p->size, 1);
	if (strcmp(r, "pitch") == 0)
		return cu.MemAllocPitch(&p->ptr, &pitch, PITCH_WIDTH, p->size / PITCH_WIDTH, 4);
	if (strcmp(r, "async") == 0)
		return cu.MemAllocAsync(&p->ptr, p->size, NULL);
	if (strcmp(r, "pool") == 0)
		return take_pool(p, w->device);
	if (strcmp(r, "vmm") == 0)
		return take_vmm(p, w->device);
	if (strcmp(r, "array") == 0)
		return take_array(p);
	die(r, "want --route linear, pitch, managed, async, pool, vmm or array");
	return CUDA_ERROR_INVALID_VALUE;
}

static void give(const struct worker *w, struct piece *p)
{
	const char *r = w->route;

	if (strcmp(r, "vmm") == 0) {
		must(cu.MemUnmap(p->ptr, p->size), "cuMemUnmap");
		must(cu.MemRelease(p->handle), "cuMemRelease");
		must(cu.MemAddressFree(p->ptr, p->size), "cuMemAddressFree");
	} else if (strcmp(r, "array") == 0) {
		must(cu.ArrayDestroy(p->array), "cuArrayDestroy");
	} else if (strcmp(r, "async") == 0 || strcmp(r, "pool") == 0) {
		must(cu.MemFreeAsync(p->ptr, NULL), "cuMemFreeAsync");
	} else {
		must(cu.MemFree(p->ptr), "cuMemFree");
	}
}

static void give_back_pools(const struct worker *w)
{
	CUmemoryPool def;

	must(cu.CtxSynchronize(), "cuCtxSynchronize");
	if (pool)
		must(cu.MemPoolDestroy(pool), "cuMemPoolDestroy");
	pool = NULL;
	if (strcmp(w->route, "async") == 0) {
		must(cu.DeviceGetDefaultMemPool(&def, w->device), "cuDeviceGetDefaultMemPool");
		must(cu.MemPoolTrimTo(def, 0), "cuMemPoolTrimTo");
	}
}

/* Takes chunks until one is refused or the cap is reached; with fine, tries
 * ever smaller ones. Returns what refused, 0 when the cap did. */
static CUresult take_all(const struct worker *w, struct piece **list, uint64_t *granted,
			 unsigned *refusals)
{
	uint64_t chunk = w->chunk ? w->chunk : DEFAULT_CHUNK;
	CUresult first = CUDA_SUCCESS;

	while (!w->cap || *granted + chunk <= w->cap) {
		struct piece *p = calloc(1, sizeof(*p));
		CUresult rc;

		if (!p)
			die("fill", "out of host memory");
		p->size = chunk;
		rc = take(w, p);
		if (rc == CUDA_SUCCESS) {
			*granted += chunk;
			p->next = *list;
			*list = p;
			continue;
		}
		free(p);
		(*refusals)++;
		if (!first)
			first = rc;
		chunk = chunk / 2 / MIN_CHUNK * MIN_CHUNK;
		if (!w->fine || chunk < MIN_CHUNK)
			break;
	}
	return first;
}

void cmd_fill(struct worker *w)
{
	struct piece *list = NULL;
	uint64_t granted = 0;
	unsigned refusals = 0;
	CUresult rc;

	printf("{\"cmd\":\"fill\",\"device\":%d,\"route\":\"%s\"", w->device, w->route);
	print_memory("before_", w->device);
	rc = take_all(w, &list, &granted, &refusals);
	printf(",\"granted\":%llu,\"result\":%d,\"error\":\"%s\",\"refusals\":%u",
	       (unsigned long long)granted, rc, error_name(rc), refusals);
	print_memory("", w->device);
	while (list) {
		struct piece *p = list;

		list = p->next;
		give(w, p);
		free(p);
	}
	give_back_pools(w);
	print_memory("after_", w->device);
	printf("}\n");
	fflush(stdout);
}

/* Memory that stays until the program ends; written and read back at its start. */
void cmd_alloc(struct worker *w, uint64_t size)
{
	struct piece p = {.size = size};
	uint64_t out = 0x1122334455667788ull, in = 0;
	CUresult rc = take(w, &p);

	printf("{\"cmd\":\"alloc\",\"device\":%d,\"route\":\"%s\",\"size\":%llu,\"result\":%d,"
	       "\"error\":\"%s\"",
	       w->device, w->route, (unsigned long long)size, rc, error_name(rc));
	if (!rc && p.ptr) {
		must(cu.CtxSynchronize(), "cuCtxSynchronize");
		must(cu.MemcpyHtoD(p.ptr, &out, sizeof(out)), "cuMemcpyHtoD");
		must(cu.MemcpyDtoH(&in, p.ptr, sizeof(in)), "cuMemcpyDtoH");
		printf(",\"content_ok\":%s", in == out ? "true" : "false");
	}
	print_memory("", w->device);
	printf("}\n");
	fflush(stdout);
}
