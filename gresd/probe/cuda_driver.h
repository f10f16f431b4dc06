/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_driver.h - the calls of CUDA's driver. The library is loaded by name, because gresd must also
 * start on a node whose driver is missing, and only a child of it ever calls one.
 */
#ifndef GRESD_PROBE_CUDA_DRIVER_H
#define GRESD_PROBE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CALLS(X)                                                                                  \
	X(cuInit, (unsigned flags))                                                               \
	X(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags))     \
	X(cuDeviceGetCount, (int *n))                                                             \
	X(cuDeviceGet, (int *device, int ordinal))                                                \
	X(cuDeviceGetUuid, (void *uuid, int device))                                              \
	X(cuDeviceGetUuid_v2, (void *uuid, int device))                                           \
	X(cuDeviceTotalMem_v2, (size_t *bytes, int device))                                       \
	X(cuDevicePrimaryCtxRetain, (void **context, int device))                                 \
	X(cuCtxSetCurrent, (void *context))                                                       \
	X(cuCtxSynchronize, (void))                                                               \
	X(cuModuleLoadData, (void **module, const void *image))                                   \
	X(cuModuleGetFunction, (void **function, void *module, const char *name))                 \
	X(cuEventCreate, (void **event, unsigned flags))                                          \
	X(cuEventRecord, (void *event, void *stream))                                             \
	X(cuEventSynchronize, (void *event))                                                      \
	X(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
			   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, \
			   void *stream, void **params, void **extra))

/* A call that this driver lacks is NULL. */
struct libcuda_calls {
#define X(name, params) int(*name) params;
	CALLS(X)
#undef X
};

extern struct libcuda_calls cu __attribute__((visibility("hidden")));

/* Fills in cu. */
int libcuda_load(const char *library, char *why, size_t size);

/* Goes on only where the call returned 0. why and size are those of the function that it is in. */
#define TRY(name, ...)                                                         \
	do {                                                                   \
		int code;                                                      \
                                                                               \
		if (!cu.name) {                                                \
			snprintf(why, size, "no function %s", #name);          \
			return -1;                                             \
		}                                                              \
		code = cu.name(__VA_ARGS__);                                   \
		if (code) {                                                    \
			snprintf(why, size, "%s: CUDA error %d", #name, code); \
			return -1;                                             \
		}                                                              \
	} while (0)

#endif
