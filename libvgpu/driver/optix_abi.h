/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optix_abi.h - OptiX has one function by name, optixQueryFunctionTable(), which fills in a table of all
 * others. Which is where depends on the version of that table. Source: optix_function_table.h of OptiX
 * 7.0 to 9.1 (github.com/NVIDIA/optix-dev, tags v7.0.0 to v9.1.0).
 */
#ifndef VGPU_DRIVER_OPTIX_ABI_H
#define VGPU_DRIVER_OPTIX_ABI_H

#include <stdint.h>

typedef int OptixResult; /* 0: success */
#define OPTIX_ERROR_LAUNCH_FAILURE 7050
#define OPTIX_ERROR_LIBRARY_NOT_FOUND 7803

/* An argument: all are integers or pointers. */
typedef uintptr_t optix_word;
#define OPTIX_UINT(word) ((uint64_t)(uint32_t)(word))

/* X(set, name, words, size): a function that puts work into a stream, with so many arguments. The first is
 * a pipeline, device context or denoiser, the second a stream, further ones are c, d and so on. size: what
 * says most about how long the work takes, if one does. */
#define OPTIX_FUNCTIONS(X, set)                                                 \
	X(set, Launch, 8, OPTIX_UINT(f) * OPTIX_UINT(g) * OPTIX_UINT(h))        \
	X(set, AccelBuild, 12, i) /* bytes of the result */                     \
	X(set, AccelRelocate, 8, 0)                                             \
	X(set, AccelCompact, 6, e) /* the same */                               \
	X(set, AccelEmitProperty, 4, 0)                                         \
	X(set, OpacityMicromapArrayBuild, 4, 0)                                 \
	X(set, OpacityMicromapArrayRelocate, 5, 0)                              \
	X(set, DisplacementMicromapArrayBuild, 4, 0)                            \
	X(set, ClusterAccelBuild, 7, 0)                                         \
	X(set, CoopVecMatrixConvert, 9, 0)                                      \
	X(set, PipelineSymbolMemcpyAsync, 7, 0)                                 \
	X(set, DenoiserSetup, 8, OPTIX_UINT(c) * OPTIX_UINT(d)) /* the image */ \
	X(set, DenoiserInvoke, 12, 0)                                           \
	X(set, DenoiserComputeIntensity, 6, 0)                                  \
	X(set, DenoiserComputeAverageColor, 6, 0)

enum optix_function {
#define NAME(set, name, words, size) OPTIX_##name,
	OPTIX_FUNCTIONS(NAME, )
#undef NAME
		OPTIX_COUNT
};

/* Where the functions are in a table of that version, in the order of above; 0: it has none. */
struct optix_table {
	int version;
	unsigned char at[OPTIX_COUNT];
};
#define OPTIX_TABLES                                                                \
	{22, {28, 21, 24, 25, 0, 0, 0, 0, 0, 0, 0, 32, 33, 35, 0}},                 \
		{36, {29, 22, 25, 26, 0, 0, 0, 0, 0, 0, 0, 33, 34, 36, 0}},         \
		{41, {29, 22, 25, 26, 0, 0, 0, 0, 0, 0, 0, 33, 34, 36, 37}},        \
		{47, {29, 22, 25, 26, 0, 0, 0, 0, 0, 0, 0, 33, 34, 35, 36}},        \
		{55, {34, 25, 28, 29, 0, 0, 0, 0, 0, 0, 0, 38, 39, 40, 41}},        \
		{60, {34, 25, 28, 29, 0, 0, 0, 0, 0, 0, 0, 38, 39, 40, 41}},        \
		{68, {38, 25, 28, 29, 0, 32, 34, 0, 0, 0, 0, 42, 43, 44, 45}},      \
		{84, {39, 25, 28, 29, 30, 33, 35, 37, 0, 0, 0, 43, 44, 45, 46}},    \
		{87, {39, 25, 28, 29, 30, 33, 35, 37, 0, 0, 0, 43, 44, 45, 46}},    \
		{93, {39, 25, 28, 29, 30, 33, 35, 37, 0, 0, 0, 45, 46, 47, 48}},    \
		{105, {41, 25, 28, 29, 30, 33, 35, 37, 39, 42, 0, 47, 48, 49, 50}}, \
		{118, {49, 33, 36, 37, 38, 41, 43, 0, 47, 50, 31, 55, 56, 57, 58}},

#endif
