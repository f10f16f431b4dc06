/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.c - CUDA arrays and mipmapped arrays. The driver does not say
 * what it takes, so the charge follows the hardware's block-linear layout:
 * rows padded to 64 bytes, heights to 8 rows, the whole to the allocator's
 * granularity. What is still different shows in the measured overhead.
 */
#include "array.h"
#include "../base/table.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "account.h"
#include "owner.h"
#include "release.h"
#include "take.h"

#define ROW_ALIGN 64u
#define HEIGHT_ALIGN 8u
#define ARRAY_ALIGN 512u

static struct vgpu_table arrays = VGPU_TABLE_INIT;

static uint64_t up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* CUarray_format to bits per channel; formats of packed or compressed texels
 * have their own channel count, so the largest of their kind is taken. */
static uint64_t channel_bits(int format)
{
	switch (format) {
	case 0x01: /* UNSIGNED_INT8 */
	case 0x08: /* SIGNED_INT8 */
		return 8;
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
		return 16;
	case 0x91: /* BC1..BC7: at most a byte a texel */
	case 0x92:
	case 0x93:
	case 0x94:
	case 0x95:
	case 0x96:
	case 0x97:
	case 0x98:
	case 0x99:
	case 0x9a:
	case 0x9b:
	case 0x9c:
	case 0x9d:
		return 8;
	default:
		return 32;
	}
}

static uint64_t level_bytes(uint64_t w, uint64_t h, uint64_t d, uint64_t texel)
{
	uint64_t row = up((w ? w : 1) * texel, ROW_ALIGN);

	return row * (h ? up(h, HEIGHT_ALIGN) : 1) * (d ? d : 1);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *a, unsigned levels)
{
	uint64_t texel = (channel_bits(a->Format) * (a->NumChannels ? a->NumChannels : 1) + 7) / 8;
	uint64_t w = a->Width, h = a->Height, d = a->Depth, sum = 0;
	/* Layers, and faces of a cube, stay as many. */
	bool layers = a->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);

	if (a->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	for (unsigned i = 0; i < (levels ? levels : 1); i++) {
		sum += level_bytes(w, h, d, texel);
		if (w <= 1 && h <= 1 && (layers || d <= 1))
			break;
		w = w > 1 ? w / 2 : 1;
		h = h > 1 ? h / 2 : h;
		d = d > 1 && !layers ? d / 2 : d;
	}
	return up(sum, ARRAY_ALIGN);
}

static void keep(int card, void *handle, uint64_t bytes)
{
	struct vgpu_item item = {.key = (uint64_t)(uintptr_t)handle,
				 .size = bytes,
				 .card = card,
				 .owner = vgpu_context_owner(card)};

	vgpu_table_put(&arrays, &item);
}

/* What each form of a descriptor says. */
#define FLAT(d)                                            \
	(&(CUDA_ARRAY3D_DESCRIPTOR){.Width = (d)->Width,   \
				    .Height = (d)->Height, \
				    .Format = (d)->Format, \
				    .NumChannels = (d)->NumChannels})
#define DEEP(d)                                                      \
	(&(CUDA_ARRAY3D_DESCRIPTOR){.Width = (d)->Width,             \
				    .Height = (d)->Height,           \
				    .Depth = (d)->Depth,             \
				    .Format = (d)->Format,           \
				    .NumChannels = (d)->NumChannels, \
				    .Flags = (d)->Flags})

#define CREATE(name, params, args, said, levels)                 \
	CUresult name params                                     \
	{                                                        \
		uint64_t bytes;                                  \
		CUresult r;                                      \
		int card;                                        \
                                                                 \
		VGPU_NEED_CUDA(name);                            \
		card = array && desc ? vgpu_card_current() : -1; \
		if (card < 0)                                    \
			return vgpu_real.name args;              \
		bytes = array_bytes(said(desc), levels);         \
		if (vgpu_mem_take(card, bytes))                  \
			return vgpu_oom(card, bytes);            \
		r = vgpu_real.name args;                         \
		if (r == CUDA_SUCCESS)                           \
			keep(card, *array, bytes);               \
		return vgpu_mem_done(card, bytes, r);            \
	}

CREATE(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), (array, desc), FLAT,
       1)
CREATE(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc), (array, desc), FLAT,
       1)
CREATE(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), (array, desc),
       DEEP, 1)
CREATE(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc), (array, desc),
       DEEP, 1)
CREATE(cuMipmappedArrayCreate,
       (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned n),
       (array, desc, n), DEEP, n)

void vgpu_arrays_ended(uint64_t owner)
{
	vgpu_table_end(&arrays, owner, vgpu_item_release);
}

#define DESTROY(name, handle)                                                               \
	CUresult name(handle array)                                                         \
	{                                                                                   \
		VGPU_NEED_CUDA(name);                                                       \
		return VGPU_FREE(&arrays, array, vgpu_real.name(array), vgpu_item_release); \
	}
DESTROY(cuArrayDestroy, CUarray)
DESTROY(cuMipmappedArrayDestroy, CUmipmappedArray)
