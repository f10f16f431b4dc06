/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c - linear, pitched and managed memory. */
#include <errno.h>

#include "../base/log.h"
#include "../base/table.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "linear.h"
#include "managed.h"
#include "owner.h"
#include "pool.h"
#include "release.h"
#include "shared.h"
#include "take.h"

/* Rows of pitched memory are aligned to at most this on every card so far. */
#define PITCH_ALIGN 512u
/* In which the card gives memory (measured: 580, H200). */
#define PIECE (2ull << 20)

static struct vgpu_table linear = VGPU_TABLE_INIT;
static struct vgpu_table leaving =
	VGPU_TABLE_INIT; /* freed in streams that have not come to that */

/* vgpu_item.other of an entry of the table */
#define KIND_MANAGED 1u /* cuMemAllocManaged: charged in steps */
#define KIND_PAGED 2u   /* beyond the physical share: charged as it is */
#define KIND_IMPORT 3u  /* an import of another process's memory */
#define KIND_OWN 4u     /* an import of this process's own memory, which owner keeps */

static void remember(int card, CUdeviceptr dptr, uint64_t size, uint64_t kind)
{
	struct vgpu_item item = {.key = dptr,
				 .size = size,
				 .card = card,
				 .other = kind,
				 .owner = vgpu_context_owner(card)};

	if (kind)
		__atomic_add_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);

	/* Forgotten for want of memory: stays charged until the process ends. */
	vgpu_table_put(&linear, &item);
}

static void freed(const struct vgpu_item *item)
{
	if (item->other == KIND_OWN) {
		vgpu_shared_unimport((struct vgpu_kept *)(uintptr_t)item->owner);
		return;
	}
	if (item->other == KIND_IMPORT) {
		vgpu_imports_less(item->card, item->size);
		return;
	}
	if (item->other == KIND_MANAGED) {
		vgpu_managed_less(item->card, item->size);
		return;
	}
	if (item->other == KIND_PAGED)
		__atomic_sub_fetch(&vgpu_managed_bytes, item->size, __ATOMIC_RELAXED);
	/* A descriptor keeps the whole piece, which small allocations share. */
	vgpu_shared_freed(item->key, item->card, (item->size + PIECE - 1) / PIECE * PIECE);
	vgpu_release(item->card, item->size);
}

/* The stream has come to the free. It calls nothing of the driver, as CUDA asks. */
static void left(void *dptr)
{
	vgpu_mem_begin();
	vgpu_table_drop(&leaving, vgpu_table_detach(&leaving, (uintptr_t)dptr), freed);
	vgpu_mem_end();
}

struct vgpu_item *vgpu_linear_freeing(CUdeviceptr dptr)
{
	return vgpu_table_detach(&linear, dptr);
}

void vgpu_linear_freed(struct vgpu_item *list, CUstream stream, CUresult r)
{
	void *dptr = list ? (void *)(uintptr_t)list->key : NULL;

	if (!list)
		return;
	/* If the stream cannot say when, it counts until its context ends. */
	vgpu_table_attach(r == CUDA_SUCCESS ? &leaving : &linear, list);
	if (r == CUDA_SUCCESS && vgpu_real.cuLaunchHostFunc)
		vgpu_real.cuLaunchHostFunc(stream, left, dptr);
}

void vgpu_linear_own(CUdeviceptr dptr, struct vgpu_kept *own)
{
	struct vgpu_item item = {.key = dptr, .other = KIND_OWN, .owner = (uintptr_t)own};

	vgpu_table_put(&linear, &item);
}

int vgpu_linear_imported(CUdeviceptr dptr, bool of_context)
{
	struct vgpu_item item = {.key = dptr, .other = KIND_IMPORT, .refs = 1};
	size_t size = 0;
	int dev = -1;

	if (of_context && vgpu_table_ref(&linear, dptr, 1, &item)) /* opened again */
		return 0;
	if (!vgpu_real.cuMemGetAddressRange_v2 || !vgpu_real.cuPointerGetAttribute ||
	    vgpu_real.cuMemGetAddressRange_v2(NULL, &size, dptr) != CUDA_SUCCESS ||
	    vgpu_real.cuPointerGetAttribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, dptr) !=
		    CUDA_SUCCESS)
		return 0; /* left to the comparison */
	item.size = size;
	item.card = vgpu_card_of_device(dev);
	if (item.card < 0)
		return 0;
	if (vgpu_imports_more(item.card, size))
		return -ENOMEM;
	item.owner = of_context ? vgpu_context_owner(item.card) : 0;
	vgpu_table_put(&linear, &item);
	return 0;
}

CUresult vgpu_linear_closed(CUdeviceptr dptr, CUresult (*real)(CUdeviceptr))
{
	return VGPU_UNREF(&linear, dptr, real(dptr), freed);
}

void vgpu_linear_ended(uint64_t owner)
{
	vgpu_table_end(&linear, owner, freed);
	vgpu_table_end(&leaving, owner, freed);
}

bool vgpu_linear_exported_one(struct vgpu_range *range)
{
	return vgpu_shared_one(&linear, range);
}

void vgpu_linear_exported(struct vgpu_range *range)
{
	vgpu_table_sweep(&linear, (uintptr_t)range, vgpu_shared_range);
}

/* Where a site lends more memory than the card has. */
static bool may_page(int card)
{
	return vgpu_state.grant->card[card].mem_physical && vgpu_real.cuMemAllocManaged;
}

/* True when the job is past what the card really has for it. */
static bool past_physical(int card)
{
	return may_page(card) && vgpu_mem_used(card) > vgpu_state.grant->card[card].mem_physical;
}

/* A linear allocation that the card pages in and out. It is charged already. */
static CUresult alloc_paged(CUdeviceptr *dptr, size_t size)
{
	static bool said;
	CUresult r = vgpu_real.cuMemAllocManaged(dptr, size, CU_MEM_ATTACH_GLOBAL);
	CUdevice dev;

	if (r == CUDA_SUCCESS && vgpu_real.cuMemAdvise &&
	    vgpu_real.cuCtxGetDevice(&dev) == CUDA_SUCCESS)
		vgpu_real.cuMemAdvise(*dptr, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev);
	if (r == CUDA_SUCCESS && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		vgpu_warn("vgpu: memory: this job is past the card's physical share; "
			  "further allocations are paged and slower");
	return r;
}

/* --------------------------------------------------------------- allocation */
CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size)
{
	CUresult r;
	bool paged;
	int card;

	VGPU_NEED_CUDA(cuMemAlloc_v2);
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAlloc_v2(dptr, size);
	if (vgpu_mem_take(card, size))
		return vgpu_oom(card, size);
	paged = past_physical(card);
	r = paged ? alloc_paged(dptr, size) : vgpu_real.cuMemAlloc_v2(dptr, size);
	/* Others have the rest of the card, or it is in pieces. */
	if (r == CUDA_ERROR_OUT_OF_MEMORY && !paged && may_page(card)) {
		paged = true;
		r = alloc_paged(dptr, size);
	}
	if (r == CUDA_SUCCESS)
		remember(card, *dptr, size, paged ? KIND_PAGED : 0);
	return vgpu_mem_done(card, size, r);
}

CUresult cuMemAlloc(unsigned *dptr, unsigned size)
{
	CUresult r;
	int card;

	VGPU_NEED_CUDA(cuMemAlloc);
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAlloc(dptr, size);
	if (vgpu_mem_take(card, size))
		return vgpu_oom(card, size);
	r = vgpu_real.cuMemAlloc(dptr, size);
	if (r == CUDA_SUCCESS)
		remember(card, *dptr, size, 0);
	return vgpu_mem_done(card, size, r);
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size, unsigned flags)
{
	CUresult r;
	int card;

	VGPU_NEED_CUDA(cuMemAllocManaged);
	card = vgpu_card_current();
	if (card < 0 || !dptr)
		return vgpu_real.cuMemAllocManaged(dptr, size, flags);
	vgpu_mem_begin();
	if (vgpu_managed_more(card, size)) {
		vgpu_mem_end();
		return vgpu_oom(card, size);
	}
	r = vgpu_real.cuMemAllocManaged(dptr, size, flags);
	if (r == CUDA_SUCCESS) {
		remember(card, *dptr, size, KIND_MANAGED);
		__atomic_sub_fetch(&vgpu_managed_bytes, size, __ATOMIC_RELAXED);
	} else {
		vgpu_managed_less(card, size);
	}
	vgpu_mem_end();
	return r;
}

static uint64_t pitched_bound(uint64_t width, uint64_t height)
{
	return (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN * height;
}

/* The bound is charged, and then what the driver's pitch needs. */
#define PITCHED(name, address, number)                                                             \
	CUresult name(address *dptr, number *pitch, number width, number height, unsigned element) \
	{                                                                                          \
		uint64_t bound = pitched_bound(width, height), bytes;                              \
		CUresult r;                                                                        \
		int card;                                                                          \
                                                                                                   \
		VGPU_NEED_CUDA(name);                                                              \
		card = vgpu_card_current();                                                        \
		if (card < 0 || !dptr || !pitch)                                                   \
			return vgpu_real.name(dptr, pitch, width, height, element);                \
		if (vgpu_mem_take(card, bound))                                                    \
			return vgpu_oom(card, bound);                                              \
		r = vgpu_real.name(dptr, pitch, width, height, element);                           \
		if (r == CUDA_SUCCESS) {                                                           \
			bytes = (uint64_t)*pitch * height;                                         \
			vgpu_charge_moves(card, bound, bytes);                                     \
			remember(card, *dptr, bytes, 0);                                           \
		}                                                                                  \
		return vgpu_mem_done(card, bound, r);                                              \
	}
PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t)
PITCHED(cuMemAllocPitch, unsigned, unsigned)

/* Frees always go through; the charge goes only when the driver has freed. */
#define FREE(name, address)                                                           \
	CUresult name(address dptr)                                                   \
	{                                                                             \
		struct vgpu_item item;                                                \
		CUresult r;                                                           \
                                                                                      \
		VGPU_NEED_CUDA(name);                                                 \
		if (!vgpu_state.grant || !vgpu_pool_freeing(dptr, &item))             \
			return VGPU_FREE(&linear, dptr, vgpu_real.name(dptr), freed); \
		vgpu_mem_begin();                                                     \
		r = vgpu_real.name(dptr);                                             \
		vgpu_pool_freed(&item, NULL, r);                                      \
		vgpu_mem_end();                                                       \
		return r;                                                             \
	}
FREE(cuMemFree_v2, CUdeviceptr)
FREE(cuMemFree, unsigned)
