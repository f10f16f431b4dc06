/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - code, its global variables, and the limits that make the
 * device take memory for itself. How much a module takes is known only once it
 * is loaded, and may come later than the load: so the card's free memory is
 * read around the calls that can load it, what it took is charged, and a module
 * that does not fit is unloaded again. Nothing is refused, and nothing large is
 * charged, by free memory alone.
 */
#include <time.h>

#include "../base/log.h"
#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"
#include "pool.h"

/* Smaller changes are left to the regular comparison with the card's count. */
#define NOTICE_BYTES (1ull << 20)
/* Larger changes are compared with the card's count of this process. This opens NVML (15 ms, once). */
#define CONFIRM_BYTES (64ull << 20)
#define CONFIRM_PAUSE_NS 10000000L

static VGPU_TABLE(modules); /* module or library -> bytes, in each context */

/* The loss of free memory during the loads of all modules. The slot has the part that is charged.
 * A neighbour's allocation can be in it, until a comparison with this process's own count takes it out
 * again. */
static VGPU_PRIVATE uint64_t took[VGPU_MAX_CARDS];

static uint64_t card_free(void)
{
	size_t f = 0, t = 0;

	if (!vgpu_real.cuMemGetInfo_v2 || vgpu_real.cuMemGetInfo_v2(&f, &t) != CUDA_SUCCESS)
		return 0;
	return f;
}

/* Before a call that can load code; size: the card's free memory. */
static struct vgpu_item begin_load(void)
{
	struct vgpu_item load = {.card = vgpu_card_current()};

	if (load.card < 0 || !vgpu_limit(load.card)) {
		load.card = -1;
	} else {
		vgpu_mem_begin();
		load.size = card_free();
	}
	return load;
}

/* Returns the bytes that the card counts for this process beyond its charge, at most the argument. If
 * the card does not count them, all are confirmed. */
static uint64_t confirmed(int card, uint64_t bytes)
{
	VGPU_NO_CANCEL;
	uint64_t told = LOAD(&vgpu_my(card)->mem), counted = 0, again = 0;

	if (!vgpu_overhead_counted(card, &counted))
		return bytes;
	/* The count may lag behind. */
	nanosleep(&(struct timespec){.tv_nsec = CONFIRM_PAUSE_NS}, NULL);
	if (vgpu_overhead_counted(card, &again) && again > counted)
		counted = again;
	if (counted <= told)
		return 0;
	return counted - told < bytes ? counted - told : bytes;
}

uint64_t vgpu_modules_charged(int card)
{
	return LOAD(&vgpu_my(card)->mem_module);
}

void vgpu_modules_lower(int card, uint64_t bytes)
{
	vgpu_charge_less(card, &vgpu_my(card)->mem_module, bytes);
}

/* False: the module does not fit. */
static bool charge_module(struct vgpu_item *item)
{
	if (vgpu_charge(item->card, item->size)) {
		vgpu_pools_settle();
		item->size = confirmed(item->card, item->size);
		if (vgpu_charge(item->card, item->size))
			return false;
	}
	ADD(&took[item->card], item->size);
	ADD(&vgpu_my(item->card)->mem_module, item->size);
	item->owner = vgpu_context_owner(item->card);
	vgpu_table_put(&modules, item);
	return true;
}

/* Charges what the call took to a module or library. Returns false when that is above the
 * limit: the caller undoes the call. */
static bool end_load(struct vgpu_item *load, uint64_t module)
{
	if (load->card < 0)
		return true;
	uint64_t now = card_free();
	load->key = module;
	load->size = now && now < load->size ? load->size - now : 0;
	if (load->size >= CONFIRM_BYTES)
		load->size = confirmed(load->card, load->size);
	bool fits = load->size < NOTICE_BYTES || charge_module(load);
	vgpu_mem_end();
	return fits;
}

/* A comparison may have lowered the charge already. A charge that another thread adds meanwhile stays. */
static void unloaded(const struct vgpu_item *item)
{
	uint64_t have = vgpu_modules_charged(item->card);
	uint64_t live = SUB(&took[item->card], item->size);

	vgpu_modules_lower(item->card, have > live ? have - live : 0);
}

static uint64_t id(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

#define CU_LOAD(name, params, args, handle)                                                 \
	CUresult name params                                                                \
	{                                                                                   \
		VGPU_NEED_CUDA(name);                                                       \
		struct vgpu_item l = begin_load();                                          \
		CUresult r = vgpu_real.name args;                                           \
		if (end_load(&l, r == CUDA_SUCCESS ? id(*handle) : 0) || r != CUDA_SUCCESS) \
			return r;                                                           \
		UNLOAD_##handle(*handle);                                                   \
		return vgpu_oom(l.card, 0);                                                 \
	}
#define UNLOAD_module vgpu_real.cuModuleUnload
#define UNLOAD_library vgpu_real.cuLibraryUnload

/* With lazy loading these are where the memory is really taken, at the first time. */
#define CU_FIRST(call, params, args, owner, variable)                      \
	CUresult call params                                               \
	{                                                                  \
		static const char id_of_call;                              \
                                                                           \
		VGPU_NEED_CUDA(call);                                      \
		uint64_t key = vgpu_use_key(&id_of_call, owner, variable); \
		if (vgpu_used(key))                                        \
			return vgpu_real.call args;                        \
		struct vgpu_item l = begin_load();                         \
		CUresult r = vgpu_real.call args;                          \
		if (!end_load(&l, id(owner)))                              \
			r = r == CUDA_SUCCESS ? vgpu_oom(l.card, 0) : r;   \
		if (r == CUDA_SUCCESS)                                     \
			vgpu_use_note(key);                                \
		return r;                                                  \
	}
#define CU(name, params)
#include "../driver/hooks.def"

#define UNLOAD(name, handle)                                                                  \
	CUresult name(handle unloads)                                                         \
	{                                                                                     \
		VGPU_NEED_CUDA(name);                                                         \
		CUresult r = VGPU_FREE(&modules, unloads, vgpu_real.name(unloads), unloaded); \
		vgpu_uses_forget();                                                           \
		return r;                                                                     \
	}
UNLOAD(cuModuleUnload, CUmodule)
UNLOAD(cuLibraryUnload, CUlibrary)

/* ------------------------------------------------------------- device limits */
static VGPU_TABLE(limits); /* CU_LIMIT_* of a context -> bytes */
/* printf's buffer: the default, and what the card gives at most (measured: H200,
 * driver 580, the default and 512 MiB asked). */
#define FIFO_DEFAULT (8448ull << 10)
#define FIFO_MOST (64ull << 20)

/* Bytes that the device takes for a limit above its default. */
static uint64_t limit_bytes(int limit, uint64_t value)
{
	int sms = 0, threads = 0;
	CUdevice dev;

	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE)
		return value > (8u << 20) ? value : 0;
	if (limit == CU_LIMIT_PRINTF_FIFO_SIZE)
		return value <= FIFO_DEFAULT ? 0 : value < FIFO_MOST ? value : FIFO_MOST;
	if (value <= 1024 || vgpu_real.cuCtxGetDevice(&dev) != CUDA_SUCCESS ||
	    vgpu_real.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev) ||
	    vgpu_real.cuDeviceGetAttribute(&threads,
					   CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, dev))
		return 0;
	/* Local memory is there for every thread that can be resident. */
	return value * (uint64_t)sms * (uint64_t)threads;
}

void vgpu_modules_ended(uint64_t owner)
{
	vgpu_table_end(&modules, owner, unloaded);
	vgpu_table_end(&limits, owner, vgpu_item_release);
}

/* The size of these is not documented, so the card's free memory is read. */
static CUresult limit_seen(int limit, size_t value, uint64_t key)
{
	size_t before = 0;

	if (!vgpu_real.cuCtxGetLimit || vgpu_real.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS)
		before = value;
	struct vgpu_item l = begin_load();
	CUresult r = vgpu_real.cuCtxSetLimit(limit, value);
	if (end_load(&l, key) || r != CUDA_SUCCESS)
		return r;
	vgpu_real.cuCtxSetLimit(limit, before);
	return vgpu_oom(l.card, 0);
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUresult r;

	VGPU_NEED_CUDA(cuCtxSetLimit);
	int card = vgpu_card_current();
	if (card < 0 || limit < CU_LIMIT_STACK_SIZE ||
	    limit > CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT)
		return vgpu_real.cuCtxSetLimit(limit, value);
	struct vgpu_item item = {.card = card, .owner = vgpu_context_owner(card)};
	item.key = vgpu_mix(item.owner, (uint64_t)limit);
	if (limit > CU_LIMIT_MALLOC_HEAP_SIZE)
		return limit_seen(limit, value, item.key);
	item.size = limit_bytes(limit, value);
	struct vgpu_item *old = vgpu_freeing(&limits, item.key);
	uint64_t have = old ? old->size : 0, more = item.size > have ? item.size - have : 0;
	if (more && vgpu_mem_take(card, more)) {
		r = vgpu_oom(card, item.size);
	} else {
		r = vgpu_real.cuCtxSetLimit(limit, value);
		if (more)
			vgpu_mem_done(card, more, r);
	}
	if (r == CUDA_SUCCESS && item.size) {
		vgpu_charge_forced(card, item.size - more);
		vgpu_table_put(&limits, &item);
	}
	vgpu_freed(&limits, old, r, vgpu_item_release);
	return r;
}
