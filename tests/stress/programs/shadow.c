/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.c - an NVML with one card of 80 GiB that has few functions, and cannot number the card. */
#include <stdio.h>

#include "../../../libvgpu/driver/cuda_abi.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static char card;

nvmlReturn_t nvmlInit_v2(void)
{
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	*device = (nvmlDevice_t)(void *)&card;
	return index ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
	(void)device;
	snprintf(uuid, size, "GPU-00000000-0000-0000-0000-000000000000");
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	(void)device;
	*memory = (nvmlMemory_t){.total = 80ull << 30, .free = 80ull << 30, .used = 0};
	return NVML_SUCCESS;
}
