/* SPDX-License-Identifier: Apache-2.0 */
/* linear.c - linear and pitched memory, and frees by address. */
#include <errno.h>

#include "../base/log.h"
#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"
#include "pool.h"

/* Rows of pitched memory are aligned to at most this on every card so far. */
#define PITCH_ALIGN 512u
/* In which the card gives memory (measured: 580, H200). */
#define PIECE (2ull << 20)

/* Entries of memory that is freed in a stream, until the stream comes to the free. */
static VGPU_TABLE(leaving);

void vgpu_linear_freed(const struct vgpu_item *item)
{
	switch (item->kind) {
	case VGPU_OF_POOL:
		vgpu_pool_freed(item);
		return;
	case VGPU_MANAGED:
		vgpu_managed_less(item->card, item->size);
		return;
	case VGPU_IMPORT:
		vgpu_imports_less(item->card, item->size);
		return;
	case VGPU_OWN:
		vgpu_shared_unimport((struct vgpu_kept *)(uintptr_t)item->other);
		return;
	case VGPU_PAGED:
		SUB(&vgpu_managed_bytes, item->size);
	}
	/* A descriptor keeps the whole piece, which small allocations share. */
	vgpu_shared_freed(item->key, item->card, (item->size + PIECE - 1) / PIECE * PIECE);
	vgpu_release(item->card, item->size);
}

int vgpu_linear_imported(CUdeviceptr dptr, bool of_context)
{
	struct vgpu_item item = {.key = dptr, .kind = VGPU_IMPORT, .refs = 1};
	size_t size = 0;
	int dev = -1;

	if (of_context && vgpu_table_ref(&vgpu_addresses, dptr, 1, &item)) /* opened again */
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
	vgpu_table_put(&vgpu_addresses, &item);
	return 0;
}

static bool ends(const struct vgpu_item *item, uint64_t owner)
{
	return item->owner == owner && item->kind != VGPU_OF_POOL;
}

void vgpu_linear_ended(uint64_t owner)
{
	vgpu_table_drop(&vgpu_addresses, vgpu_table_detach_if(&vgpu_addresses, owner, ends),
			vgpu_linear_freed);
	vgpu_table_end(&leaving, owner, vgpu_linear_freed);
}

/* --------------------------------------------------------------- allocation */
/* Where a site lends more memory than the card has. */
static bool may_page(int card)
{
	return card >= 0 && vgpu_state.grant->card[card].mem_physical &&
	       vgpu_real.cuMemAllocManaged;
}

/* A linear allocation that the card pages in and out. It is charged already. */
static CUresult alloc_paged(CUdeviceptr *dptr, size_t size)
{
	static bool said;
	CUresult r = vgpu_real.cuMemAllocManaged(dptr, size, CU_MEM_ATTACH_GLOBAL);
	CUdevice dev;

	if (r != CUDA_SUCCESS)
		return r;
	ADD(&vgpu_managed_bytes, size);
	if (vgpu_real.cuMemAdvise && vgpu_real.cuCtxGetDevice(&dev) == CUDA_SUCCESS)
		vgpu_real.cuMemAdvise(*dptr, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev);
	if (!EXCHANGE(&said, true))
		vgpu_warn("vgpu: memory: this job is past the card's physical share; "
			  "further allocations are paged and slower");
	return r;
}

static CUresult alloc(int card, CUdeviceptr *dptr, size_t size, unsigned *kind)
{
	bool paged =
		may_page(card) && vgpu_mem_used(card) > vgpu_state.grant->card[card].mem_physical;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	if (!paged)
		r = vgpu_real.cuMemAlloc_v2(dptr, size);
	/* Others have the rest of the card, or it is in pieces. */
	if (r != CUDA_ERROR_OUT_OF_MEMORY || !may_page(card))
		return r;
	*kind = VGPU_PAGED;
	return alloc_paged(dptr, size);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t size)
{
	unsigned kind = VGPU_LINEAR;

	VGPU_NEED_CUDA(cuMemAlloc_v2);
	VGPU_ALLOC(&vgpu_addresses, dptr ? vgpu_card_current() : -1, size,
		   alloc(card_, dptr, size, &kind), .key = *dptr, .size = size, .kind = kind);
}

CUresult cuMemAlloc(unsigned *dptr, unsigned size)
{
	VGPU_NEED_CUDA(cuMemAlloc);
	VGPU_ALLOC(&vgpu_addresses, dptr ? vgpu_card_current() : -1, size,
		   vgpu_real.cuMemAlloc(dptr, size), .key = *dptr, .size = size);
}

static uint64_t pitched_bound(uint64_t width, uint64_t height)
{
	return (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN * height;
}

/* The charge becomes what the driver's pitch needs. */
static uint64_t moved(int card, uint64_t bound, uint64_t bytes)
{
	vgpu_charge_moves(card, bound, bytes);
	return bytes;
}

#define PITCHED(name, address, number)                                                             \
	CUresult name(address *dptr, number *pitch, number width, number height, unsigned element) \
	{                                                                                          \
		VGPU_NEED_CUDA(name);                                                              \
		VGPU_ALLOC(&vgpu_addresses, !dptr || !pitch ? -1 : vgpu_card_current(),            \
			   pitched_bound(width, height),                                           \
			   vgpu_real.name(dptr, pitch, width, height, element), .key = *dptr,      \
			   .size = moved(card_, bytes_, *pitch * (uint64_t)height));               \
	}
PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t)
PITCHED(cuMemAllocPitch, unsigned, unsigned)

/* --------------------------------------------------------------------- frees */
#define FREE(name, address)                                                                       \
	CUresult name(address dptr)                                                               \
	{                                                                                         \
		VGPU_NEED_CUDA(name);                                                             \
		return VGPU_FREE(&vgpu_addresses, dptr, vgpu_real.name(dptr), vgpu_linear_freed); \
	}
FREE(cuMemFree_v2, CUdeviceptr)
FREE(cuMemFree, unsigned)

/* The stream has come to the free. It calls nothing of the driver, as CUDA asks. */
static void left(void *dptr)
{
	vgpu_mem_begin();
	vgpu_table_drop(&leaving, vgpu_table_detach(&leaving, (uintptr_t)dptr), vgpu_linear_freed);
	vgpu_mem_end();
}

/* After the driver's free in a stream: memory of no pool is charged until the stream comes to it. */
static void leave(struct vgpu_item *list, CUstream stream)
{
	void *dptr = (void *)(uintptr_t)list->key;

	if (list->kind == VGPU_OF_POOL) {
		vgpu_pool_freed_in(list, stream);
		vgpu_table_drop(&vgpu_addresses, list, vgpu_linear_freed);
		return;
	}
	/* If the stream cannot say when, it counts until its context ends. */
	vgpu_table_attach(&leaving, list);
	if (vgpu_real.cuLaunchHostFunc)
		vgpu_real.cuLaunchHostFunc(stream, left, dptr);
}

#define FREE_ASYNC(name, per_thread)                                               \
	CUresult name(CUdeviceptr dptr, CUstream stream)                           \
	{                                                                          \
		VGPU_NEED_CUDA(name);                                              \
		struct vgpu_item *list = vgpu_table_detach(&vgpu_addresses, dptr); \
		CUresult r = vgpu_real.name(dptr, stream);                         \
		if (list && r == CUDA_SUCCESS)                                     \
			leave(list, vgpu_stream(stream, per_thread));              \
		else if (list)                                                     \
			vgpu_table_attach(&vgpu_addresses, list);                  \
		return r;                                                          \
	}
FREE_ASYNC(cuMemFreeAsync, false)
FREE_ASYNC(cuMemFreeAsync_ptsz, true)
