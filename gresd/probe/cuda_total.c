/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_total.c - the memory of a card that a program sees. */
#include "cuda.h"

#include <string.h>

#include "cuda_driver.h"

int libcuda_total_memory(const char *library, unsigned long long *by_name,
			 unsigned long long *by_address, char *why, size_t size)
{
	int (*total)(size_t *bytes, int device);
	size_t bytes = 0;
	void *at = NULL;
	int device;

	if (libcuda_load(library, why, size))
		return -1;
	TRY(cuInit, 0);
	TRY(cuDeviceGet, &device, 0);
	TRY(cuDeviceTotalMem_v2, &bytes, device);
	*by_name = bytes;
	*by_address = 0;
	/* How the CUDA runtime finds functions; drivers before 11.3 have no such way. */
	if (cu.cuGetProcAddress && cu.cuGetProcAddress("cuDeviceTotalMem", &at, 3020, 0) == 0 &&
	    at) {
		memcpy(&total, &at, sizeof at);
		if (total(&bytes, device) == 0)
			*by_address = bytes;
	}
	return 0;
}
