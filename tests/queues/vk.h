/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vk.h - what vulkan.c needs of Vulkan, from the Khronos headers of 1.3.239. The first field of a
 * structure that is handed over says which it is.
 */
#ifndef QUEUES_VK_H
#define QUEUES_VK_H

#include <stdint.h>

#include "../../libvgpu/driver/others_abi.h"

enum {
	APPLICATION_INFO = 0,
	INSTANCE_INFO = 1,
	DEVICE_QUEUE_INFO = 2,
	DEVICE_INFO = 3,
	SUBMIT_INFO = 4,
	MEMORY_INFO = 5,
	FENCE_INFO = 8,
	SEMAPHORE_INFO = 9,
	BUFFER_INFO = 12,
	POOL_INFO = 39,
	COMMAND_BUFFER_INFO = 40,
	BEGIN_INFO = 42,
	TIMELINE_FEATURE = 1000207000,
	SEMAPHORE_TYPE_INFO = 1000207002,
	TIMELINE_SUBMIT_INFO = 1000207003,
	SUBMIT2_INFO = 1000314004,
	SUBMIT2_BUFFER_INFO = 1000314006,
	SYNCHRONIZATION2_FEATURE = 1000314007,
};
#define API_1_3 (1u << 22 | 3u << 12)
#define QUEUE_COMPUTE 2u
#define MEMORY_OF_CARD 1u
#define BUFFER_TRANSFER_TO 2u
#define SEMAPHORE_TIMELINE 1
#define STAGE_ALL 0x10000u

struct vk_application {
	int32_t type;
	const void *next;
	const char *name;
	uint32_t version;
	const char *engine;
	uint32_t engine_version, api;
};
struct vk_instance {
	int32_t type;
	const void *next;
	uint32_t flags;
	const struct vk_application *application;
	uint32_t layers;
	const char *const *layer;
	uint32_t extensions;
	const char *const *extension;
};
struct vk_feature {
	int32_t type;
	const void *next;
	uint32_t on;
};
struct vk_device_queue {
	int32_t type;
	const void *next;
	uint32_t flags, family, count;
	const float *priorities;
};
struct vk_device {
	int32_t type;
	const void *next;
	uint32_t flags, queues;
	const struct vk_device_queue *queue;
	uint32_t layers;
	const char *const *layer;
	uint32_t extensions;
	const char *const *extension;
	const void *features;
};
struct vk_family {
	uint32_t flags, count, rest[4];
};
struct vk_memories {
	uint32_t types;
	struct {
		uint32_t flags, heap;
	} type[32];
	uint64_t rest[32];
};
struct vk_requirements {
	uint64_t size, alignment;
	uint32_t types;
};
struct vk_buffer {
	int32_t type;
	const void *next;
	uint32_t flags;
	uint64_t size;
	uint32_t usage, sharing, families;
	const uint32_t *family;
};
struct vk_memory {
	int32_t type;
	const void *next;
	uint64_t size;
	uint32_t kind;
};
struct vk_pool {
	int32_t type;
	const void *next;
	uint32_t flags, family;
};
struct vk_buffers {
	int32_t type;
	const void *next;
	uint64_t pool;
	uint32_t level, count;
};
struct vk_begin {
	int32_t type;
	const void *next;
	uint32_t flags;
	const void *inherits;
};
struct vk_semaphore {
	int32_t type;
	const void *next;
	uint32_t flags;
};
struct vk_semaphore_type {
	int32_t type;
	const void *next;
	int32_t kind;
	uint64_t value;
};
struct vk_timeline {
	int32_t type;
	const void *next;
	uint32_t waits;
	const uint64_t *wait;
	uint32_t signals;
	const uint64_t *signal;
};
struct vk_submit2_buffer {
	int32_t type;
	const void *next;
	void *buffer;
	uint32_t mask;
};

#endif
