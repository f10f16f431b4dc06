/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - one CUDA context, without linking against libcuda. */
#ifndef GRESD_PROBE_CUDA_H
#define GRESD_PROBE_CUDA_H

#include <stddef.h>

/* Loads the library and makes the primary context of the card with that NVML
 * UUID ("GPU-" or "MIG-" and 36 characters). The context stays until the process ends.
 * Returns 0, or -1 with the reason in why. */
int probe_make_context(const char *library, const char *uuid, char *why, size_t size);

/* Asks the library for the memory of its first card, by the function's name and as
 * the CUDA runtime finds it (0 where there is no such way). Makes no context.
 * Returns 0, or -1 with the reason in why. */
int probe_total_memory(const char *library, unsigned long long *by_name,
		       unsigned long long *by_address, char *why, size_t size);

#endif
