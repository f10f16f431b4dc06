/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan_abi.h - what of Vulkan this library calls and stands for. From the Khronos headers of
 * Vulkan 1.3.239 (vulkan/vulkan_core.h); the same in all versions since each function is there.
 * Handles that can be dispatched are pointers, the others have 64 bits.
 */
#ifndef VGPU_DRIVER_VULKAN_ABI_H
#define VGPU_DRIVER_VULKAN_ABI_H

#include <stddef.h>
#include <stdint.h>

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
