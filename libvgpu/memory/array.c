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
				 .owner = vgpu_context_owner(card),
				 .refs = 1};

	vgpu_table_put(&arrays, &item);
}

/* The same steps around each creating call; made is where it leaves the handle. */
#define CREATE(bytes_, made, call)                    \
	do {                                          \
		uint64_t bytes = (bytes_);            \
		int card = vgpu_card_current();       \
		CUresult r;                           \
                                                      \
		if (card < 0)                         \
			return call;                  \
		if (vgpu_mem_take(card, bytes))       \
			return vgpu_oom(card, bytes); \
		r = call;                             \
		if (r == CUDA_SUCCESS)                \
			keep(card, made, bytes);      \
		return vgpu_mem_done(card, bytes, r); \
	} while (0)

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {0};

	vgpu_need_cuda();
	if (!vgpu_real.cuArrayCreate_v2)
		return CUDA_ERROR_NO_DEVICE;
	if (!array || !desc)
		return vgpu_real.cuArrayCreate_v2(array, desc);
	d.Width = desc->Width;
	d.Height = desc->Height;
	d.Format = desc->Format;
	d.NumChannels = desc->NumChannels;
	CREATE(array_bytes(&d, 1), *array, vgpu_real.cuArrayCreate_v2(array, desc));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuArray3DCreate_v2)
		return CUDA_ERROR_NO_DEVICE;
	if (!array || !desc)
		return vgpu_real.cuArray3DCreate_v2(array, desc);
	CREATE(array_bytes(desc, 1), *array, vgpu_real.cuArray3DCreate_v2(array, desc));
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {0};

	vgpu_need_cuda();
	if (!vgpu_real.cuArrayCreate)
		return CUDA_ERROR_NO_DEVICE;
	if (!array || !desc)
		return vgpu_real.cuArrayCreate(array, desc);
	d.Width = desc->Width;
	d.Height = desc->Height;
	d.Format = desc->Format;
	d.NumChannels = desc->NumChannels;
	CREATE(array_bytes(&d, 1), *array, vgpu_real.cuArrayCreate(array, desc));
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {0};

	vgpu_need_cuda();
	if (!vgpu_real.cuArray3DCreate)
		return CUDA_ERROR_NO_DEVICE;
	if (!array || !desc)
		return vgpu_real.cuArray3DCreate(array, desc);
	d.Width = desc->Width;
	d.Height = desc->Height;
	d.Depth = desc->Depth;
	d.Format = desc->Format;
	d.NumChannels = desc->NumChannels;
	d.Flags = desc->Flags;
	CREATE(array_bytes(&d, 1), *array, vgpu_real.cuArray3DCreate(array, desc));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
				unsigned levels)
{
	vgpu_need_cuda();
	if (!vgpu_real.cuMipmappedArrayCreate)
		return CUDA_ERROR_NO_DEVICE;
	if (!array || !desc)
		return vgpu_real.cuMipmappedArrayCreate(array, desc, levels);
	CREATE(array_bytes(desc, levels), *array,
	       vgpu_real.cuMipmappedArrayCreate(array, desc, levels));
}

static void forget(void *handle)
{
	struct vgpu_item item;

	if (vgpu_state.grant && vgpu_table_take(&arrays, (uint64_t)(uintptr_t)handle, &item))
		vgpu_release(item.card, item.size);
}

static bool ended(const struct vgpu_item *item, uint64_t owner)
{
	if (item->owner != owner)
		return false;
	vgpu_release(item->card, item->size);
	return true;
}

void vgpu_arrays_ended(uint64_t owner)
{
	vgpu_table_sweep(&arrays, owner, ended);
}

CUresult cuArrayDestroy(CUarray array)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuArrayDestroy)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_mem_begin();
	r = vgpu_real.cuArrayDestroy(array);
	if (r == CUDA_SUCCESS)
		forget(array);
	vgpu_mem_end();
	return r;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuMipmappedArrayDestroy)
		return CUDA_ERROR_NO_DEVICE;
	vgpu_mem_begin();
	r = vgpu_real.cuMipmappedArrayDestroy(array);
	if (r == CUDA_SUCCESS)
		forget(array);
	vgpu_mem_end();
	return r;
}
