/* SPDX-License-Identifier: Apache-2.0 */
/* nvml_memory.c - NVML tells the same memory as CUDA: the share as the card. */
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "../memory/memory.h"

/* False: the device has no limit. */
static bool view(int card, unsigned long long *total, unsigned long long *free,
		 unsigned long long *used)
{
	uint64_t f = *free, t = *total;

	if (card < 0 || !vgpu_limit(card))
		return false;
	vgpu_shared_settle();
	vgpu_told(card, &f, &t);
	/* total = used + free holds on a card: what others hold shows as used. */
	if (t != *total || f != *free)
		*used = t - f;
	*total = t;
	*free = f;
	return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	VGPU_NEED_NVML(nvmlDeviceGetMemoryInfo);
	nvmlReturn_t r = vgpu_real.nvmlDeviceGetMemoryInfo(device, memory);
	if (r == NVML_SUCCESS)
		view(vgpu_card_of_nvml(device), &memory->total, &memory->free, &memory->used);
	return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	VGPU_NEED_NVML(nvmlDeviceGetMemoryInfo_v2);
	nvmlReturn_t r = vgpu_real.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (r == NVML_SUCCESS &&
	    view(vgpu_card_of_nvml(device), &memory->total, &memory->free, &memory->used))
		memory->reserved = 0;
	return r;
}
