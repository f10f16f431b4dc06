// SPDX-License-Identifier: Apache-2.0
/* array.c - arrays for textures: they take memory, and hold no content. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>

struct CUarray_st {
	uint32_t magic;
	uint32_t card;
	uint64_t bytes;
	CUcontext ctx;
	CUarray next;
	CUDA_ARRAY3D_DESCRIPTOR desc;
};

struct CUmipmappedArray_st {
	struct CUarray_st base;
};

static CUarray arrays;

static unsigned element_size(int format)
{
	switch (format) {
	case 0x01:
	case 0x08:
		return 1;
	case 0x02:
	case 0x09:
	case 0x10:
		return 2;
	case 0x03:
	case 0x0a:
	case 0x20:
		return 4;
	}
	return 0;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
	size_t w = d->Width >> level, h = d->Height >> level,
	       z = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) ? d->Depth
									    : d->Depth >> level;

	return (uint64_t)(w ? w : 1) * (h ? h : 1) * (z ? z : 1) * d->NumChannels *
	       element_size(d->Format);
}

static CUresult array_new(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, struct CUarray_st *a)
{
	uint64_t bytes = 0;
	CUresult rc;

	if (!d || !d->Width || !element_size(d->Format) ||
	    (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	rc = capture_unsafe();
	if (rc)
		return rc;
	for (unsigned i = 0; i < levels; i++)
		bytes += level_bytes(d, i);
	bytes = (bytes + DRV_PAGE - 1) / DRV_PAGE * DRV_PAGE;
	rc = mem_charge(drv_current()->card, bytes);
	if (rc)
		return rc;
	a->magic = MAGIC_ARRAY;
	a->card = drv_current()->card;
	a->bytes = bytes;
	a->desc = *d;
	a->ctx = drv_current();
	a->next = arrays;
	arrays = a;
	return CUDA_SUCCESS;
}

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	CUarray a = calloc(1, sizeof(*a));
	CUresult rc = a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	if (!array)
		rc = CUDA_ERROR_INVALID_VALUE;
	if (!rc)
		rc = array_new(d, 1, a);
	if (rc)
		free(a);
	else
		*array = a;
	return rc;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	ENTER(NEED_CTX);
	return drv_leave(create(array, desc));
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {0};

	ENTER(NEED_CTX);
	if (!desc)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	d.Width = desc->Width;
	d.Height = desc->Height;
	d.Format = desc->Format;
	d.NumChannels = desc->NumChannels;
	return drv_leave(create(array, &d));
}

static bool array_ok(CUarray a)
{
	return a && a->magic == MAGIC_ARRAY;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *desc, CUarray array)
{
	ENTER(NEED_CTX);
	if (!desc || !array_ok(array))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	*desc = array->desc;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *desc, CUarray array)
{
	ENTER(NEED_CTX);
	if (!desc || !array_ok(array))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	desc->Width = array->desc.Width;
	desc->Height = array->desc.Height;
	desc->Format = array->desc.Format;
	desc->NumChannels = array->desc.NumChannels;
	return drv_leave(CUDA_SUCCESS);
}

static CUresult destroy(CUarray a)
{
	CUarray *link = &arrays;

	if (!array_ok(a))
		return CUDA_ERROR_INVALID_HANDLE;
	while (*link != a)
		link = &(*link)->next;
	*link = a->next;
	mem_uncharge(a->card, a->bytes);
	a->magic = 0;
	free(a);
	return CUDA_SUCCESS;
}

void array_drop_context(CUcontext ctx)
{
	CUarray next;

	for (CUarray a = arrays; a; a = next) {
		next = a->next;
		if (a->ctx == ctx)
			destroy(a);
	}
}

CUresult cuArrayDestroy(CUarray array)
{
	ENTER(NEED_CTX);
	return drv_leave(destroy(array));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc,
				unsigned levels)
{
	CUmipmappedArray a;
	CUresult rc;

	ENTER(NEED_CTX);
	if (!array || !levels || levels > 32)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	a = calloc(1, sizeof(*a));
	if (!a)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	rc = array_new(desc, levels, &a->base);
	if (rc)
		free(a);
	else
		*array = a;
	return drv_leave(rc);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	ENTER(NEED_CTX);
	return drv_leave(destroy(array ? &array->base : NULL));
}
