/* SPDX-License-Identifier: Apache-2.0 */
/* real.h - the driver's own functions. */
#ifndef VGPU_DRIVER_REAL_H
#define VGPU_DRIVER_REAL_H

#include "../base/util.h"
#include "cuda_abi.h"

/* A member is NULL until its library is loaded, and stays NULL when the driver does not
 * have it. */
struct vgpu_real {
#define CU(name, params) CUresult(*name) params;
#define NV(name, params) nvmlReturn_t(*name) params;
#include "hooks.def"
};
extern struct vgpu_real vgpu_real;

/* Loads libcuda (libnvidia-ml) if it is not, attaches this process to its job, and resolves
 * the table once. Both are safe from any thread and cheap when done. */
void vgpu_need_cuda(void);
void vgpu_need_nvml(void);
/* How a hook begins; it ends where its library does not have the function, or is not there. */
#define VGPU_NEED_CUDA(name)                         \
	do {                                         \
		vgpu_need_cuda();                    \
		if (!vgpu_real.name)                 \
			return CUDA_ERROR_NO_DEVICE; \
	} while (0)
#define VGPU_NEED_NVML(name)                                                                     \
	do {                                                                                     \
		vgpu_need_nvml();                                                                \
		if (!vgpu_real.name)                                                             \
			return vgpu_real.nvmlDeviceGetMemoryInfo ? NVML_ERROR_FUNCTION_NOT_FOUND \
								 : NVML_ERROR_LIBRARY_NOT_FOUND; \
	} while (0)
/* After a fork, in the child: unlocked; its first CUDA call attaches it. */
void vgpu_real_in_child(void);

/* The one call from here to a room further right: start/attach.c defines it. */
void vgpu_attach(void);

/* Answers ioctls in the kernel driver's place; NULL but with the simulated driver. */
extern int (*vgpu_transport)(int fd, unsigned long req, void *arg);

/* The default stream, by the handle that event calls take for it. */
static inline CUstream vgpu_stream(CUstream s, bool per_thread)
{
	return s ? s : per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

#endif
