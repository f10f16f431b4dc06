/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - a small program on the plain driver API, for tests: it tells what
 * it is told about a card, fills its memory, and keeps it busy. Each command
 * prints one line of JSON. It runs unchanged on a real card and on a simulated
 * one, with and without a preloaded library.
 *
 * main.c     command line          driver.c  finding the libraries
 * report.c   what is told          fill.c    memory
 * saturate.c work                  kernel.c  the kernel, and how long it takes
 */
#ifndef VGPU_WORKER_H
#define VGPU_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "../simgpu/cuda_abi.h"
#include "../simgpu/libnvml/nvml_abi.h"

/* field, exported symbol, CUDA version to ask cuGetProcAddress for */
#define DRIVER_CALLS(X)                                                  \
	X(Init, cuInit, 2000)                                            \
	X(DriverGetVersion, cuDriverGetVersion, 2020)                    \
	X(DeviceGet, cuDeviceGet, 2000)                                  \
	X(DeviceGetCount, cuDeviceGetCount, 2000)                        \
	X(DeviceGetName, cuDeviceGetName, 2000)                          \
	X(DeviceGetUuid, cuDeviceGetUuid_v2, 11040)                      \
	X(DeviceTotalMem, cuDeviceTotalMem_v2, 3020)                     \
	X(DeviceGetAttribute, cuDeviceGetAttribute, 2000)                \
	X(GetErrorName, cuGetErrorName, 6000)                            \
	X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)        \
	X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000)  \
	X(CtxCreate, cuCtxCreate_v2, 3020)                               \
	X(CtxSetCurrent, cuCtxSetCurrent, 4000)                          \
	X(CtxSynchronize, cuCtxSynchronize, 2000)                        \
	X(MemGetInfo, cuMemGetInfo_v2, 3020)                             \
	X(MemAlloc, cuMemAlloc_v2, 3020)                                 \
	X(MemAllocPitch, cuMemAllocPitch_v2, 3020)                       \
	X(MemAllocManaged, cuMemAllocManaged, 6000)                      \
	X(MemFree, cuMemFree_v2, 3020)                                   \
	X(MemHostAlloc, cuMemHostAlloc, 2020)                            \
	X(MemFreeHost, cuMemFreeHost, 2000)                              \
	X(MemcpyHtoD, cuMemcpyHtoD_v2, 3020)                             \
	X(MemcpyDtoH, cuMemcpyDtoH_v2, 3020)                             \
	X(MemAllocAsync, cuMemAllocAsync, 11020)                         \
	X(MemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020)         \
	X(MemFreeAsync, cuMemFreeAsync, 11020)                           \
	X(MemPoolCreate, cuMemPoolCreate, 11020)                         \
	X(MemPoolDestroy, cuMemPoolDestroy, 11020)                       \
	X(MemPoolTrimTo, cuMemPoolTrimTo, 11020)                         \
	X(DeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020)     \
	X(MemCreate, cuMemCreate, 10020)                                 \
	X(MemRelease, cuMemRelease, 10020)                               \
	X(MemAddressReserve, cuMemAddressReserve, 10020)                 \
	X(MemAddressFree, cuMemAddressFree, 10020)                       \
	X(MemMap, cuMemMap, 10020)                                       \
	X(MemUnmap, cuMemUnmap, 10020)                                   \
	X(MemSetAccess, cuMemSetAccess, 10020)                           \
	X(ArrayCreate, cuArrayCreate_v2, 3020)                           \
	X(ArrayDestroy, cuArrayDestroy, 2000)                            \
	X(ModuleLoadData, cuModuleLoadData, 2000)                        \
	X(ModuleUnload, cuModuleUnload, 2000)                            \
	X(ModuleGetFunction, cuModuleGetFunction, 2000)                  \
	X(LaunchKernel, cuLaunchKernel, 4000)                            \
	X(LaunchKernelEx, cuLaunchKernelEx, 11060)                       \
	X(LaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000)      \
	X(StreamCreate, cuStreamCreate, 2000)                            \
	X(StreamDestroy, cuStreamDestroy_v2, 4000)                       \
	X(StreamSynchronize, cuStreamSynchronize, 2000)                  \
	X(StreamBeginCapture, cuStreamBeginCapture_v2, 10010)            \
	X(StreamEndCapture, cuStreamEndCapture, 10000)                   \
	X(EventCreate, cuEventCreate, 2000)                              \
	X(EventDestroy, cuEventDestroy_v2, 4000)                         \
	X(EventRecord, cuEventRecord, 2000)                              \
	X(EventSynchronize, cuEventSynchronize, 2000)                    \
	X(EventQuery, cuEventQuery, 2000)                                \
	X(EventElapsedTime, cuEventElapsedTime, 2000)                    \
	X(GraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040) \
	X(GraphLaunch, cuGraphLaunch, 10000)                             \
	X(GraphExecDestroy, cuGraphExecDestroy, 10000)                   \
	X(GraphDestroy, cuGraphDestroy, 10000)

#define NVML_CALLS(X)                                                 \
	X(Init, nvmlInit_v2)                                          \
	X(DeviceGetHandleByUUID, nvmlDeviceGetHandleByUUID)           \
	X(DeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo)               \
	X(DeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo_v2)         \
	X(DeviceGetCount, nvmlDeviceGetCount_v2)                      \
	X(DeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)      \
	X(DeviceGetName, nvmlDeviceGetName)                           \
	X(DeviceGetUUID, nvmlDeviceGetUUID)                           \
	X(DeviceGetMaxMigDeviceCount, nvmlDeviceGetMaxMigDeviceCount) \
	X(DeviceGetMigDeviceHandleByIndex, nvmlDeviceGetMigDeviceHandleByIndex)

#define X(field, symbol, version) __typeof__(symbol) *field;
struct driver_calls {
	DRIVER_CALLS(X)
};
#undef X
#define X(field, symbol) __typeof__(symbol) *field;
struct nvml_calls {
	bool ready;
	NVML_CALLS(X)
};
#undef X

#define MAX_DEVICES 16

struct worker {
	CUdevice device;
	CUcontext ctx[MAX_DEVICES];
	bool create_context; /* cuCtxCreate instead of the primary context */
	/* options of the next command */
	const char *route, *launch, *wait;
	uint64_t chunk, cap;
	bool fine;
	double kernel_us, start_at, solo_rate;
	double unit_ns, gap_ns; /* of --calibrate; 0: measured */
	int inflight, streams;
	double part; /* of the multiprocessors, %, that a kernel needs */
};

extern struct driver_calls cu;
extern struct nvml_calls nvml;

/* driver.c */
void driver_load(const char *libdir, bool by_getproc);
void nvml_load(const char *libdir);
const char *error_name(CUresult rc);
void must(CUresult rc, const char *what); /* ends the program when rc is an error */
void die(const char *what, const char *why);
uint64_t now_ns(void);
/* For how long this program was without a processor that it wanted; 0 on a real card. */
double late_s(void);

/* report.c */
void uuid_text(CUdevice dev, char out[64]);
void print_memory(const char *prefix, CUdevice dev); /* ,"<prefix>free":... */
void cmd_count(void);
void cmd_list(void);
void cmd_report(struct worker *w);

/* fill.c */
void cmd_fill(struct worker *w);
void cmd_alloc(struct worker *w, uint64_t size);

/* kernel.c */
struct kernel {
	CUmodule module;
	CUfunction fn;
	unsigned grid, block;
	double ns_per_unit, gap_ns; /* what a unit takes; what each kernel of a row takes more */
};
void kernel_open(struct kernel *k, const struct worker *w);
void kernel_close(struct kernel *k);
void cmd_fault(void);

/* saturate.c */
void cmd_saturate(struct worker *w, double seconds);
void cmd_calibrate(struct worker *w);

#endif
