/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h - calls of the driver by name. Each argument has the type that the driver's function has. */
#ifndef STRESS_CALLS_H
#define STRESS_CALLS_H

#include <stdlib.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

static void *cuda; /* the driver's library */

/* Returns the call's error; CUDA_ERROR_NOT_FOUND: the driver has no such function. */
#define TRY(name, ...)                                                 \
	({                                                             \
		CUresult (*fn_)() = (CUresult(*)())dlsym(cuda, #name); \
		fn_ ? fn_(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND;         \
	})

/* Ends the program if the call fails. */
#define CALL(name, ...)                                                \
	do {                                                           \
		CUresult r_ = TRY(name, __VA_ARGS__);                  \
		if (r_) {                                              \
			fprintf(stderr, "%s returns %d\n", #name, r_); \
			exit(3);                                       \
		}                                                      \
	} while (0)

/* Opens the driver and makes a context on card 0. */
static inline void open_card(const char *libdir)
{
	CUcontext ctx;

	cuda = library(libdir, "libcuda.so.1");
	if (!cuda)
		exit(3);
	CALL(cuInit, 0u);
	CALL(cuCtxCreate_v2, &ctx, 0u, 0);
}

/* The MiB in use that CUDA reports. */
static inline size_t used(void)
{
	size_t free, total;

	CALL(cuMemGetInfo_v2, &free, &total);
	return (total - free) >> 20;
}

#endif
