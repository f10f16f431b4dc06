/* SPDX-License-Identifier: Apache-2.0 */
/* nvml_memory.c - NVML tells the same memory as CUDA: the share as the card. */
#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "../memory/memory.h"

static void view(int card, unsigned long long *total, unsigned long long *free,
		 unsigned long long *used)
{
	uint64_t f = *free, t = *total;

	vgpu_shared_settle();
	vgpu_told(card, &f, &t);
	/* total = used + free holds on a card: what others hold shows as used. */
	if (t != *total || f != *free)
		*used = t - f;
	*total = t;
	*free = f;
}

#define MEMORY(name, type, more)                                                  \
	nvmlReturn_t name(nvmlDevice_t device, type *memory)                      \
	{                                                                         \
		VGPU_NEED_NVML(name);                                             \
		nvmlReturn_t r = vgpu_real.name(device, memory);                  \
		int card = r == NVML_SUCCESS ? vgpu_card_of_nvml(device) : -1;    \
		if (card >= 0 && vgpu_limit(card)) {                              \
			view(card, &memory->total, &memory->free, &memory->used); \
			more;                                                     \
		}                                                                 \
		return r;                                                         \
	}
MEMORY(nvmlDeviceGetMemoryInfo, nvmlMemory_t, )
MEMORY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, memory->reserved = 0)
