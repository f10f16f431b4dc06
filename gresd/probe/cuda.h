/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - what children of gresd, and the doctor's, do with CUDA: each loads the library
 * named, and returns 0, or -1 with the reason in why. */
#ifndef GRESD_PROBE_CUDA_H
#define GRESD_PROBE_CUDA_H

#include <stddef.h>

/* Makes the primary context of the card with that NVML UUID ("GPU-" or "MIG-" and 36
 * characters). It stays until the process ends. */
int libcuda_make_context(const char *library, const char *uuid, char *why, size_t size);

/* Asks for the memory of the first card, by the function's name and as the CUDA runtime finds it
 * (0 where there is no such way). Makes no context. */
int libcuda_total_memory(const char *library, unsigned long long *by_name,
			 unsigned long long *by_address, char *why, size_t size);

/* Makes a context on the first card, and launches kernels until standard input is closed. It
 * returns when the last has ended. */
int libcuda_work(const char *library, char *why, size_t size);

#endif
