/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.c - CUDA arrays and mipmapped arrays. The driver does not say
 * what it takes, so the charge follows the hardware's block-linear layout:
 * rows padded to 64 bytes, heights to 8 rows, the whole to the allocator's
 * granularity. What is still different shows in the measured overhead.
 */
#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"

#define ROW_ALIGN 64u
#define HEIGHT_ALIGN 8u
#define ARRAY_ALIGN 512u

static VGPU_TABLE(arrays);

static uint64_t up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* CUarray_format to bits per channel; formats of packed or compressed texels
 * have their own channel count, so the largest of their kind is taken. */
static uint64_t channel_bits(int format)
{
	switch (format) {
	case 0x01:          /* UNSIGNED_INT8 */
	case 0x08:          /* SIGNED_INT8 */
	case 0x91 ... 0x9d: /* BC1 to BC7: at most a byte a texel */
		return 8;
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
		return 16;
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

/* The last parameters: fields that only descriptors of three dimensions have. */
#define CREATE(name, params, args, levels, ...)                                              \
	CUresult name params                                                                 \
	{                                                                                    \
		VGPU_NEED_CUDA(name);                                                        \
		VGPU_ALLOC(&arrays, !array || !desc ? -1 : vgpu_card_current(),              \
			   array_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width,      \
								  .Height = desc->Height,    \
								  .Format = desc->Format,    \
								  .NumChannels =             \
									  desc->NumChannels, \
								  __VA_ARGS__},              \
				       levels),                                              \
			   vgpu_real.name args, .key = (uintptr_t)*array, .size = bytes_);   \
	}
#define DEEP .Depth = desc->Depth, .Flags = desc->Flags

CREATE(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), (array, desc), 1)
CREATE(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc), (array, desc), 1)
CREATE(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), (array, desc), 1,
       DEEP)
CREATE(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc), (array, desc), 1,
       DEEP)
CREATE(cuMipmappedArrayCreate,
       (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned n),
       (array, desc, n), n, DEEP)

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
