/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_context.c - one context on a card that is named as NVML does. */
#include "cuda.h"

#include <string.h>

#include "cuda_driver.h"

static void format(const unsigned char uuid[16], char text[37])
{
	char *p = text;

	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

static int uuid_of(int device, char text[37], char *why, size_t size)
{
	unsigned char uuid[16];

	/* Drivers before 11.4 have only the older name, which does the same where there is no
	 * MIG. */
	if (cu.cuDeviceGetUuid_v2)
		TRY(cuDeviceGetUuid_v2, uuid, device);
	else
		TRY(cuDeviceGetUuid, uuid, device);
	format(uuid, text);
	return 0;
}

int libcuda_make_context(const char *library, const char *uuid, char *why, size_t size)
{
	int n, device;
	void *context;
	char text[37];

	if (libcuda_load(library, why, size))
		return -1;
	TRY(cuInit, 0);
	TRY(cuDeviceGetCount, &n);
	for (int i = 0; i < n; i++) {
		TRY(cuDeviceGet, &device, i);
		if (uuid_of(device, text, why, size))
			return -1;
		if (strcmp(text, uuid + 4) != 0) /* CUDA does not tell GPU- from MIG- */
			continue;
		TRY(cuDevicePrimaryCtxRetain, &context, device);
		return 0;
	}
	snprintf(why, size, "CUDA has %d cards and not this one", n);
	return -1;
}
