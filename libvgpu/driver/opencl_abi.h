/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opencl_abi.h - what of OpenCL this library calls and stands for. From the Khronos headers of
 * OpenCL 3.0 (CL/cl.h, CL/cl_ext.h, of 2023-02-06); the same in all versions since each function
 * is there.
 */
#ifndef VGPU_DRIVER_OPENCL_ABI_H
#define VGPU_DRIVER_OPENCL_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef void *cl_queue, *cl_kernel, *cl_mem, *cl_event, *cl_device;

#define CL_COMPLETE 0
#define CL_INVALID_OPERATION (-59)
#define CL_DEVICE_VENDOR_ID 0x1001u
#define CL_DEVICE_UUID_KHR 0x106Au
#define CL_QUEUE_DEVICE 0x1091u
#define CL_QUEUE_PROPERTIES 0x1093u
#define CL_QUEUE_OUT_OF_ORDER 1u
#define CL_EVENT_COMMAND_TYPE 0x11D1u
#define CL_EVENT_COMMAND_EXECUTION_STATUS 0x11D3u
#define CL_COMMAND_USER 0x1204u
#define VENDOR_NVIDIA 0x10DEu

#endif
