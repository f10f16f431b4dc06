/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_abi_test.c - compiled on a machine that has the real cuda.h and nvml.h:
 *   gcc -fsyntax-only -I/usr/local/cuda/include tests/abi/cuda_abi_test.c
 * and by make -C libvgpu check, with -DOWN_HEADER, for the header of libvgpu itself.
 * Every prototype of hooks.def must be that of the header, and every structure
 * that libvgpu reads must have the size and offsets that cuda_abi.h says.
 */
#define __CUDA_API_VERSION_INTERNAL /* all versions, no renaming */
#ifdef OWN_HEADER
#include "../../libvgpu/driver/cuda_abi.h"
#else
#include <cuda.h>
#include <nvml.h>
#endif
#include <stddef.h>
#include <stdint.h>

/* Enums are passed like int; size_t and 64-bit integers are the same register. */
#define SAME(a, b) _Static_assert((a) == (b), #a " == " #b)

SAME(sizeof(CUmemAllocationProp), 32);
SAME(offsetof(CUmemAllocationProp, location), 8);
SAME(sizeof(CUmemLocation), 8);
SAME(offsetof(CUmemLocation, id), 4);
SAME(sizeof(CUlaunchConfig), 56);
SAME(offsetof(CUlaunchConfig, hStream), 32);
SAME(sizeof(CUDA_LAUNCH_PARAMS), 56);
SAME(offsetof(CUDA_LAUNCH_PARAMS, hStream), 40);
SAME(sizeof(CUuuid), 16);
SAME(sizeof(CUipcMemHandle), 64);
SAME(sizeof(CUDA_ARRAY_DESCRIPTOR_v1), 16);
SAME(sizeof(CUDA_ARRAY3D_DESCRIPTOR_v1), 24);
SAME(sizeof(CUmemPoolProps), 88);
SAME(offsetof(CUmemPoolProps, location), 8);
SAME(sizeof(CUDA_ARRAY_DESCRIPTOR), 24);
SAME(offsetof(CUDA_ARRAY_DESCRIPTOR, Format), 16);
SAME(sizeof(CUDA_ARRAY3D_DESCRIPTOR), 40);
SAME(offsetof(CUDA_ARRAY3D_DESCRIPTOR, Flags), 32);
SAME(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS), 120);
SAME(offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize), 104);
SAME(CU_GRAPH_NODE_TYPE_GRAPH, 4);
SAME(CU_GRAPH_NODE_TYPE_MEM_ALLOC, 10);
SAME(CU_MEM_ALLOCATION_TYPE_MANAGED, 2);
SAME(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 2);
SAME(sizeof(CUDA_MEMCPY2D), 128);
SAME(offsetof(CUDA_MEMCPY2D, srcDevice), 32);
SAME(offsetof(CUDA_MEMCPY2D, dstMemoryType), 72);
SAME(offsetof(CUDA_MEMCPY2D, WidthInBytes), 112);
SAME(sizeof(CUDA_MEMCPY3D), 200);
SAME(sizeof(CUDA_MEMCPY3D_PEER), 200);
SAME(offsetof(CUDA_MEMCPY3D, srcDevice), 48);
SAME(offsetof(CUDA_MEMCPY3D, dstMemoryType), 120);
SAME(offsetof(CUDA_MEMCPY3D, WidthInBytes), 176);
SAME(sizeof(CUDA_MEMCPY3D_BATCH_OP), 112);
SAME(offsetof(CUDA_MEMCPY3D_BATCH_OP, dst), 40);
SAME(offsetof(CUDA_MEMCPY3D_BATCH_OP, extent), 80);
SAME(CU_MEMCPY_OPERAND_TYPE_ARRAY, 2);
SAME(CU_MEMORYTYPE_ARRAY, 3);
SAME(CU_MEMORYTYPE_UNIFIED, 4);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9);
SAME(CU_MEM_ATTACH_GLOBAL, 1);
SAME(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 3);
SAME(CU_LIMIT_STACK_SIZE, 0);
SAME(CU_LIMIT_PRINTF_FIFO_SIZE, 1);
SAME(CU_LIMIT_MALLOC_HEAP_SIZE, 2);
SAME(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 4);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16);
SAME(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 39);
SAME(CUDA_ARRAY3D_LAYERED, 0x01);
SAME(CUDA_ARRAY3D_CUBEMAP, 0x04);
SAME(CUDA_ARRAY3D_SPARSE, 0x40);
SAME(CUDA_ARRAY3D_DEFERRED_MAPPING, 0x80);
SAME(sizeof(nvmlProcessInfo_v1_t), 16);
SAME(sizeof(nvmlProcessInfo_v2_t), 24);
SAME(sizeof(nvmlProcessInfo_t), 24);
SAME(sizeof(nvmlProcessUtilizationSample_t), 32);
SAME(offsetof(nvmlProcessUtilizationSample_t, smUtil), 16);
SAME(sizeof(nvmlProcessUtilizationInfo_v1_t), 40);
SAME(offsetof(nvmlProcessUtilizationInfo_v1_t, pid), 8);
SAME(offsetof(nvmlProcessesUtilizationInfo_t, procUtilArray), 16);
SAME(sizeof(nvmlProcessDetail_v1_t), 32);
SAME(offsetof(nvmlProcessDetailList_t, procArray), 16);
SAME(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
SAME(CU_MEM_HANDLE_TYPE_FABRIC, 8);
SAME(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1);
SAME(NVML_ERROR_INSUFFICIENT_SIZE, 7);
SAME(CU_MEM_LOCATION_TYPE_DEVICE, 1);
SAME(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5);
SAME(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 7);
SAME(CUDA_ERROR_OUT_OF_MEMORY, 2);
SAME(CUDA_ERROR_NO_DEVICE, 100);
SAME(CUDA_ERROR_DEVICE_UNAVAILABLE, 46);
SAME(CUDA_ERROR_NOT_READY, 600);
SAME(CUDA_ERROR_NOT_PERMITTED, 800);
SAME(sizeof(nvmlMemory_t), 24);
SAME(sizeof(nvmlMemory_v2_t), 40);
SAME(offsetof(nvmlMemory_v2_t, free), 24);
SAME(NVML_ERROR_LIBRARY_NOT_FOUND, 12);
SAME(NVML_ERROR_FUNCTION_NOT_FOUND, 13);

#ifndef OWN_HEADER
/* The number of parameters and their sizes, by declaring a pointer to the
 * header's function with our parameter list; the compiler warns of a
 * difference that matters (-Wincompatible-pointer-types lists the rest). */
#define CU(name, params) CUresult(*check_##name) params = name;
#define NV(name, params) nvmlReturn_t(*check_##name) params = name;
#define CU_USE(name, params) CU(name, params)
#define NV_USE(name, params) NV(name, params)
#include "../../libvgpu/driver/hooks.def"
#endif
