/* SPDX-License-Identifier: Apache-2.0 */
/* nvml_memory.c - NVML tells the same memory as CUDA: the share as the card. */
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "../memory/shared.h"
#include "../memory/told.h"

static void view(int card, unsigned long long *total, unsigned long long *free,
		 unsigned long long *used)
{
	uint64_t f = *free, t = *total;

	vgpu_shared_settle();
	vgpu_told(card, &f, &t);
	if (t == *total && f == *free)
		return;
	*total = t;
	*free = f;
	/* total = used + free holds on a card: what others hold shows as used. */
	*used = t - f;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t r;
	int card;

	VGPU_NEED_NVML(nvmlDeviceGetMemoryInfo);
	r = vgpu_real.nvmlDeviceGetMemoryInfo(device, memory);
	card = r == NVML_SUCCESS ? vgpu_card_of_nvml(device) : -1;
	if (card >= 0 && vgpu_limit(card))
		view(card, &memory->total, &memory->free, &memory->used);
	return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t r;
	int card;

	VGPU_NEED_NVML(nvmlDeviceGetMemoryInfo_v2);
	r = vgpu_real.nvmlDeviceGetMemoryInfo_v2(device, memory);
	card = r == NVML_SUCCESS ? vgpu_card_of_nvml(device) : -1;
	if (card >= 0 && vgpu_limit(card)) {
		view(card, &memory->total, &memory->free, &memory->used);
		memory->reserved = 0;
	}
	return r;
}
