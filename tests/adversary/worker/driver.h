/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - the driver's functions that the worker calls. */
#ifndef ADVERSARY_DRIVER_H
#define ADVERSARY_DRIVER_H

#include <stdint.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "../../stress/programs/common.h"

typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
	CUfunction func;
	unsigned gridDimX, gridDimY, gridDimZ;
	unsigned blockDimX, blockDimY, blockDimZ;
	unsigned sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

#define KERNEL                                                                             \
	(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
	 CUstream, void **, void **)

#define FUNCTIONS(F)                                                                              \
	F(cuInit, (unsigned))                                                                     \
	F(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                      \
	F(cuCtxDestroy_v2, (CUcontext))                                                           \
	F(cuCtxSetCurrent, (CUcontext))                                                           \
	F(cuCtxSynchronize, (void))                                                               \
	F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                      \
	F(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                               \
	F(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                 \
	F(cuGreenCtxCreate, (CUgreenCtx *, void *, CUdevice, unsigned))                           \
	F(cuGreenCtxDestroy, (CUgreenCtx))                                                        \
	F(cuModuleLoadData, (CUmodule *, const void *))                                           \
	F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                            \
	F(cuLaunchKernel, KERNEL)                                                                 \
	F(cuLaunchKernel_ptsz, KERNEL)                                                            \
	F(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))               \
	F(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned,         \
				      unsigned, unsigned, unsigned, CUstream, void **))           \
	F(cuStreamCreate, (CUstream *, unsigned))                                                 \
	F(cuStreamDestroy_v2, (CUstream))                                                         \
	F(cuStreamSynchronize, (CUstream))                                                        \
	F(cuStreamQuery, (CUstream))                                                              \
	F(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                       \
	F(cuLaunchHostFunc, (CUstream, void (*)(void *), void *))                                 \
	F(cuEventCreate, (CUevent *, unsigned))                                                   \
	F(cuEventRecord, (CUevent, CUstream))                                                     \
	F(cuEventQuery, (CUevent))                                                                \
	F(cuEventSynchronize, (CUevent))                                                          \
	F(cuStreamBeginCapture_v2, (CUstream, int))                                               \
	F(cuStreamBeginRecaptureToGraph, (CUstream, int, CUgraph, void *, void *))                \
	F(cuStreamEndCapture, (CUstream, CUgraph *))                                              \
	F(cuGraphDestroy, (CUgraph))                                                              \
	F(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))              \
	F(cuGraphLaunch, (CUgraphExec, CUstream))                                                 \
	F(cuGraphExecDestroy, (CUgraphExec))                                                      \
	F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                 \
	F(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                     \
	F(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                \
	F(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                           \
	F(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                                    \
	F(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                     \
	F(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                           \
	F(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
	F(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                    \
	F(cuMemcpyPeer, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t))                 \
	F(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream))  \
	F(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *))                                                 \
	F(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *, CUstream))                                  \
	F(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *, CUstream))                                  \
	F(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *, CUstream))                            \
	F(cuMemcpyAtoD_v2, (CUdeviceptr, CUarray, size_t, size_t))                                \
	F(cuMemcpyDtoA_v2, (CUarray, size_t, CUdeviceptr, size_t))                                \
	F(cuMemcpyBatchAsync_v2, (const CUdeviceptr *, const CUdeviceptr *, const size_t *,       \
				  size_t, void *, size_t *, size_t, CUstream))                    \
	F(cuMemcpy3DBatchAsync_v2,                                                                \
	  (size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream))                       \
	F(cuMemcpyWithAttributesAsync, (CUdeviceptr, CUdeviceptr, size_t, void *, CUstream))      \
	F(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                    \
	F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                        \
	F(cuMemHostRegister_v2, (void *, size_t, unsigned))                                       \
	F(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                    \
	F(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                   \
	F(cuGraphCreate, (CUgraph *, unsigned))                                                   \
	F(cuGraphAddKernelNode_v2,                                                                \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *)) \
	F(cuGraphAddMemAllocNode,                                                                 \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))    \
	F(cuGraphAddMemFreeNode,                                                                  \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                     \
	F(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,      \
			unsigned long long))                                                      \
	F(cuMemRelease, (CUmemGenericAllocationHandle))                                           \
	F(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))  \
	F(cuMemAddressFree, (CUdeviceptr, size_t))                                                \
	F(cuMemMap,                                                                               \
	  (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))        \
	F(cuMemUnmap, (CUdeviceptr, size_t))                                                      \
	F(cuMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, int, unsigned long long))  \
	F(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                              \
	F(cuMemPoolDestroy, (CUmemoryPool))                                                       \
	F(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))

/* A driver, or a simulated card, may lack these: the operation then does nothing. */
#define OPTIONAL(F)                                                                              \
	F(cuMemExportToShareableHandle,                                                          \
	  (void *, CUmemGenericAllocationHandle, int, unsigned long long))                       \
	F(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int))         \
	F(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long))     \
	F(cuMemPoolImportFromShareableHandle, (CUmemoryPool *, void *, int, unsigned long long)) \
	F(cuMemPoolExportPointer, (void *, CUdeviceptr))                                         \
	F(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, void *))

#define MEMBER(name, params) CUresult(*name) params;
extern struct driver {
	FUNCTIONS(MEMBER)
	OPTIONAL(MEMBER)
} cu;

static inline int driver_open(void)
{
	void *lib = library("", "libcuda.so.1");

#define LOOK_UP(name, params) *(void **)&cu.name = lib ? dlsym(lib, #name) : NULL;
#define FIND(name, params)                                                   \
	LOOK_UP(name, params)                                                \
	if (!cu.name) {                                                      \
		fprintf(stderr, "adversary: the driver has no %s\n", #name); \
		return -1;                                                   \
	}
	FUNCTIONS(FIND)
	OPTIONAL(LOOK_UP)
	return 0;
}

#define NS_PER_UNIT 20
#define MIB (1u << 20)

/* operations.c: a stream and a kernel of the thread's current context */
CUstream stream_of(unsigned i);
enum kernel { WORK, SPIN, MARK, KERNELS };
CUfunction kernel_of(enum kernel k);
/* Counts a refusal for want of memory, and returns r. */
CUresult counted(const char *call, CUresult r);
/* Replaces graph I of the thread. */
void set_graph(unsigned i, CUgraph g);

#endif
