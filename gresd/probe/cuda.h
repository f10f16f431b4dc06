/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - one CUDA context, without linking against libcuda. */
#ifndef GRESD_PROBE_CUDA_H
#define GRESD_PROBE_CUDA_H

#include <stddef.h>

/* Loads the library and makes the primary context of the card with that NVML
 * UUID ("GPU-" and 36 characters). The context stays until the process ends.
 * Returns 0, or -1 with the reason in why. */
int probe_make_context(const char *library, const char *uuid, char *why, size_t size);

#endif
