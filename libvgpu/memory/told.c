/* SPDX-License-Identifier: Apache-2.0 */
/* told.c - what a process is told of its memory: the share as the card. */
#include "../config.h"
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "memory.h"
#include "pool.h"

/* Whether the job may hold more than the card has. A program that has not asked CUDA for its
 * cards knows it by the card's total. */
static bool lent(int card, uint64_t total)
{
	uint64_t physical = vgpu_state.grant->card[card].mem_physical;

	return physical == VGPU_MEM_OF_CARD ? vgpu_limit(card) > total : physical != 0;
}

void vgpu_told(int card, uint64_t *free, uint64_t *total)
{
	uint64_t limit = card < 0 ? 0 : vgpu_limit(card), used, left;
	bool paged; /* which needs no room on the card */

	if (!limit)
		return;
	used = vgpu_mem_used(card);
	left = limit > used ? limit - used : 0;
	paged = lent(card, *total);
	if (paged || *free > left)
		*free = left;
	if (paged || *total > limit)
		*total = limit;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	size_t f = 0, t = 0;

	VGPU_NEED_CUDA(cuMemGetInfo_v2);
	CUresult r = vgpu_real.cuMemGetInfo_v2(&f, &t);
	if (r != CUDA_SUCCESS)
		return r;
	vgpu_pools_settle();
	vgpu_told(vgpu_card_current(), &f, &t);
	if (free)
		*free = f;
	if (total)
		*total = t;
	return r;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	size_t free = 0;

	VGPU_NEED_CUDA(cuDeviceTotalMem_v2);
	CUresult r = vgpu_real.cuDeviceTotalMem_v2(bytes, dev);
	if (r == CUDA_SUCCESS)
		vgpu_told(vgpu_card_of_device(dev), &free, bytes);
	return r;
}

static void put(unsigned *to, CUresult r, size_t bytes)
{
	if (r == CUDA_SUCCESS && to)
		*to = bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

CUresult cuMemGetInfo(unsigned *free, unsigned *total)
{
	size_t f = 0, t = 0;
	CUresult r = cuMemGetInfo_v2(&f, &t);

	put(free, r, f);
	put(total, r, t);
	return r;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
	size_t b = 0;
	CUresult r = cuDeviceTotalMem_v2(&b, dev);

	put(bytes, r, b);
	return r;
}
