/* SPDX-License-Identifier: Apache-2.0 */
/*
 * others_abi.h - what of OpenCL, OpenGL with EGL, and Vulkan this library calls and stands for. From the
 * Khronos headers; the same in all versions since each function is there.
 */
#ifndef VGPU_DRIVER_OTHERS_ABI_H
#define VGPU_DRIVER_OTHERS_ABI_H

#include <stddef.h>
#include <stdint.h>

/* OpenCL 3.0 (CL/cl.h, CL/cl_ext.h, of 2023-02-06). */
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

/* EGL 1.5 and OpenGL 4.6 (EGL/egl.h, EGL/eglext.h, GL/glcorearb.h, GL/glx.h); the same in OpenGL ES. */
typedef void *EGLDisplay, *EGLSurface, *EGLContext, *EGLSync, *GLsync;
typedef uint32_t EGLBoolean, EGLenum, GLenum, GLbitfield;
typedef int32_t EGLint, GLint;
typedef const char *gl_text;
typedef void (*gl_function)(void);

#define EGL_VENDOR 0x3053
#define EGL_SYNC_FENCE 0x30F9u
#define EGL_TIMEOUT_EXPIRED 0x30F5
#define EGL_CONDITION_SATISFIED 0x30F6
#define EGL_SYNC_FLUSH_COMMANDS_BIT 1
#define GL_SYNC_FLUSH_COMMANDS_BIT 1u
#define GL_ALREADY_SIGNALED 0x911Au
#define GL_TIMEOUT_EXPIRED 0x911Bu
#define GL_CONDITION_SATISFIED 0x911Cu
#define GL_WAIT_FAILED 0x911Du

/* Vulkan 1.3.239 (vulkan/vulkan_core.h). Handles that can be dispatched are pointers, the others have
 * 64 bits. */
typedef int32_t VkResult;
typedef void *VkInstance, *VkDevice, *VkQueue;
typedef uint64_t VkFence;
typedef void (*PFN_vkVoidFunction)(void);

#define VK_SUCCESS 0
#define VK_NOT_READY 1
#define VK_ERROR_INITIALIZATION_FAILED (-3)
#define VK_STRUCTURE_TYPE_FENCE_CREATE_INFO 8

typedef struct {
	int32_t type;
	const void *next;
	uint32_t waits;
	const void *wait, *stages;
	uint32_t buffers;
	const void *buffer;
	uint32_t signals;
	const void *signal;
} VkSubmitInfo;

typedef struct {
	int32_t type;
	const void *next;
	uint32_t flags, waits;
	const void *wait;
	uint32_t buffers;
	const void *buffer;
	uint32_t signals;
	const void *signal;
} VkSubmitInfo2;

typedef struct {
	int32_t type;
	const void *next;
	uint32_t flags;
} VkFenceCreateInfo;

#endif
