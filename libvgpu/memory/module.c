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
#include "../base/table.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "card_count.h"
#include "first_use.h"
#include "module.h"
#include "owner.h"
#include "pool.h"
#include "release.h"
#include "take.h"

/* Smaller changes are left to the regular comparison with the card's count. */
#define NOTICE_BYTES (1ull << 20)
/* From here on a change is held against the card's count of this process, at the
 * price of opening NVML (15 ms, once). */
#define CONFIRM_BYTES (64ull << 20)
#define CONFIRM_PAUSE_NS 10000000L

static struct vgpu_table modules =
	VGPU_TABLE_INIT; /* module or library -> bytes, in each context */

/* What modules took by the card's free memory, and what of that is on our slot.
 * The free memory is the whole card's: a neighbour's allocation can be in it, until
 * a comparison with this process's own count takes it out again. */
static struct {
	uint64_t live, charged;
} booked[VGPU_MAX_CARDS];

static uint64_t card_free(void)
{
	size_t f = 0, t = 0;

	if (!vgpu_real.cuMemGetInfo_v2 || vgpu_real.cuMemGetInfo_v2(&f, &t) != CUDA_SUCCESS)
		return 0;
	return f;
}

struct load {
	int card;
	uint64_t free_before;
};

static struct load begin_load(void)
{
	struct load l = {.card = vgpu_card_current()};

	if (l.card >= 0 && vgpu_limit(l.card)) {
		vgpu_mem_begin();
		l.free_before = card_free();
	} else {
		l.card = -1;
	}
	return l;
}

/* Of bytes, what the card counts for this process beyond what is announced; all of
 * it where the card does not say. */
static uint64_t confirmed(int card, uint64_t bytes)
{
	uint64_t told = __atomic_load_n(&vgpu_my(card)->mem, __ATOMIC_SEQ_CST);
	uint64_t counted = 0, again = 0;
	int cancel;

	if (!vgpu_overhead_counted(card, &counted))
		return bytes;
	/* The count may lag behind. */
	cancel = vgpu_no_cancel();
	nanosleep(&(struct timespec){.tv_nsec = CONFIRM_PAUSE_NS}, NULL);
	vgpu_cancel_as(cancel);
	if (vgpu_overhead_counted(card, &again) && again > counted)
		counted = again;
	if (counted <= told)
		return 0;
	return counted - told < bytes ? counted - told : bytes;
}

static void show(int card)
{
	__atomic_store_n(&vgpu_my(card)->mem_module,
			 __atomic_load_n(&booked[card].charged, __ATOMIC_RELAXED),
			 __ATOMIC_RELAXED);
}

/* Lowers the charge to at most want. */
static void lower(int card, uint64_t want)
{
	uint64_t have = __atomic_load_n(&booked[card].charged, __ATOMIC_SEQ_CST);

	while (have > want &&
	       !__atomic_compare_exchange_n(&booked[card].charged, &have, want, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	if (have > want)
		vgpu_release(card, have - want);
	show(card);
}

uint64_t vgpu_modules_charged(int card)
{
	return __atomic_load_n(&booked[card].charged, __ATOMIC_SEQ_CST);
}

void vgpu_modules_lower(int card, uint64_t bytes)
{
	uint64_t have = vgpu_modules_charged(card);

	lower(card, have > bytes ? have - bytes : 0);
}

/* Charges what the call took to owner. Returns false when that is above the
 * limit: the caller undoes the call. */
static bool end_load(const struct load *l, uint64_t owner)
{
	struct vgpu_item item = {.key = owner, .card = l->card};
	uint64_t now;
	bool fits;

	if (l->card < 0)
		return true;
	now = card_free();
	item.size = now && now < l->free_before ? l->free_before - now : 0;
	if (item.size >= CONFIRM_BYTES)
		item.size = confirmed(l->card, item.size);
	if (item.size < NOTICE_BYTES) {
		vgpu_mem_end();
		return true;
	}
	fits = vgpu_charge(l->card, item.size) == 0;
	if (!fits) {
		vgpu_pools_settle();
		item.size = confirmed(l->card, item.size);
		fits = vgpu_charge(l->card, item.size) == 0;
	}
	if (fits) {
		__atomic_add_fetch(&booked[l->card].live, item.size, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&booked[l->card].charged, item.size, __ATOMIC_SEQ_CST);
		show(l->card);
		item.owner = vgpu_context_owner(l->card);
		vgpu_table_put(&modules, &item);
	}
	vgpu_mem_end();
	return fits;
}

/* What a comparison has taken out already is not released again. */
static void unloaded(const struct vgpu_item *item)
{
	lower(item->card,
	      __atomic_sub_fetch(&booked[item->card].live, item->size, __ATOMIC_SEQ_CST));
}

static uint64_t id(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

#define LOADING(name, params, args, made, unload)                                            \
	CUresult name params                                                                 \
	{                                                                                    \
		struct load l;                                                               \
		CUresult r;                                                                  \
                                                                                             \
		VGPU_NEED_CUDA(name);                                                        \
		l = begin_load();                                                            \
		r = vgpu_real.name args;                                                     \
		if (!end_load(&l, r == CUDA_SUCCESS ? id(*made) : 0) && r == CUDA_SUCCESS) { \
			vgpu_real.unload(*made);                                             \
			return vgpu_oom(l.card, 0);                                          \
		}                                                                            \
		return r;                                                                    \
	}

LOADING(cuModuleLoad, (CUmodule * module, const char *file), (module, file), module, cuModuleUnload)
LOADING(cuModuleLoadData, (CUmodule * module, const void *image), (module, image), module,
	cuModuleUnload)
LOADING(cuModuleLoadDataEx,
	(CUmodule * module, const void *image, unsigned n, void *options, void **values),
	(module, image, n, options, values), module, cuModuleUnload)
LOADING(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image), module,
	cuModuleUnload)
LOADING(cuLibraryLoadData,
	(CUlibrary * library, const void *code, void *jit, void **jit_values, unsigned njit,
	 void *options, void **values, unsigned n),
	(library, code, jit, jit_values, njit, options, values, n), library, cuLibraryUnload)
LOADING(cuLibraryLoadFromFile,
	(CUlibrary * library, const char *file, void *jit, void **jit_values, unsigned njit,
	 void *options, void **values, unsigned n),
	(library, file, jit, jit_values, njit, options, values, n), library, cuLibraryUnload)

/* With lazy loading these are where the memory is really taken, at the first time. */
#define FIRST_USE(call, params, args, owner, variable)                   \
	CUresult call params                                             \
	{                                                                \
		static const char id_of_call;                            \
		struct load l;                                           \
		uint64_t key;                                            \
		CUresult r;                                              \
                                                                         \
		VGPU_NEED_CUDA(call);                                    \
		key = vgpu_use_key(&id_of_call, owner, variable);        \
		if (vgpu_used(key))                                      \
			return vgpu_real.call args;                      \
		l = begin_load();                                        \
		r = vgpu_real.call args;                                 \
		if (!end_load(&l, id(owner)))                            \
			r = r == CUDA_SUCCESS ? vgpu_oom(l.card, 0) : r; \
		if (r == CUDA_SUCCESS)                                   \
			vgpu_use_note(key);                              \
		return r;                                                \
	}

FIRST_USE(cuModuleGetGlobal_v2,
	  (CUdeviceptr * dptr, size_t *bytes, CUmodule module, const char *name),
	  (dptr, bytes, module, name), module, name)
FIRST_USE(cuModuleGetGlobal, (unsigned *dptr, unsigned *bytes, CUmodule module, const char *name),
	  (dptr, bytes, module, name), module, name)
FIRST_USE(cuLibraryGetManaged,
	  (CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	  (dptr, bytes, library, name), library, name)
FIRST_USE(cuKernelGetFunction, (CUfunction * f, CUkernel kernel), (f, kernel), kernel, NULL)
FIRST_USE(cuFuncLoad, (CUfunction f), (f), f, NULL)
FIRST_USE(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library), library,
	  NULL)
FIRST_USE(cuLibraryGetGlobal,
	  (CUdeviceptr * dptr, size_t *bytes, CUlibrary library, const char *name),
	  (dptr, bytes, library, name), library, name)

#define UNLOAD(name, handle)                                                         \
	CUresult name(handle unloads)                                                \
	{                                                                            \
		CUresult r;                                                          \
                                                                                     \
		VGPU_NEED_CUDA(name);                                                \
		r = VGPU_FREE(&modules, unloads, vgpu_real.name(unloads), unloaded); \
		vgpu_uses_forget();                                                  \
		return r;                                                            \
	}
UNLOAD(cuModuleUnload, CUmodule)
UNLOAD(cuLibraryUnload, CUlibrary)

/* ------------------------------------------------------------- device limits */
static struct vgpu_table limits = VGPU_TABLE_INIT; /* CU_LIMIT_* of a context -> bytes */
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

/* What the card takes for these is not documented: it is seen by the free memory. */
static CUresult limit_seen(int limit, size_t value, uint64_t key)
{
	size_t before = 0;
	struct load l;
	CUresult r;

	if (!vgpu_real.cuCtxGetLimit || vgpu_real.cuCtxGetLimit(&before, limit) != CUDA_SUCCESS)
		before = value;
	l = begin_load();
	r = vgpu_real.cuCtxSetLimit(limit, value);
	if (end_load(&l, key) || r != CUDA_SUCCESS)
		return r;
	vgpu_real.cuCtxSetLimit(limit, before);
	return vgpu_oom(l.card, 0);
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct vgpu_item item, was;
	uint64_t have = 0;
	CUresult r;
	int card;

	VGPU_NEED_CUDA(cuCtxSetLimit);
	card = vgpu_card_current();
	if (card < 0 || limit < CU_LIMIT_STACK_SIZE ||
	    limit > CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT)
		return vgpu_real.cuCtxSetLimit(limit, value);
	item = (struct vgpu_item){.card = card, .owner = vgpu_context_owner(card)};
	item.key = vgpu_mix(item.owner, (uint64_t)limit);
	if (limit > CU_LIMIT_MALLOC_HEAP_SIZE)
		return limit_seen(limit, value, item.key);
	item.size = limit_bytes(limit, value);
	while (vgpu_table_take(&limits, item.key, &was))
		have += was.size;
	if (item.size > have && vgpu_mem_take(card, item.size - have)) {
		r = vgpu_oom(card, item.size);
		item.size = have;
	} else if (item.size > have) {
		r = vgpu_real.cuCtxSetLimit(limit, value);
		vgpu_mem_done(card, item.size - have, r);
	} else {
		vgpu_mem_begin();
		r = vgpu_real.cuCtxSetLimit(limit, value);
		if (r == CUDA_SUCCESS)
			vgpu_release(card, have - item.size);
		vgpu_mem_end();
	}
	if (r != CUDA_SUCCESS)
		item.size = have;
	if (item.size)
		vgpu_table_put(&limits, &item);
	return r;
}
