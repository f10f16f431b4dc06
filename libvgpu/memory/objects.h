/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.h - memory of the card that is asked of the kernel driver without libcuda: what OpenCL,
 * Vulkan and OpenGL take. What libcuda takes is charged where the program asks for it.
 */
#ifndef VGPU_MEMORY_OBJECTS_H
#define VGPU_MEMORY_OBJECTS_H

#include "../base/table.h"

/* Objects that a process can have. Who wants more gets no memory for them. */
#define VGPU_MAX_MEMORY_OBJECTS 65536u

/* One that is to be made, of so many bytes. */
struct vgpu_object {
	uint32_t client, parent, object;
	uint64_t bytes;
	int card; /* that pays */
};
/* Before the kernel driver is asked: 0, or -ENOMEM, which the user is told. */
int vgpu_object_take(struct vgpu_object *asked);
/* After: as it was made, with the bytes that it really has; NULL: it was not. */
void vgpu_object_taken(const struct vgpu_object *asked, const struct vgpu_object *made);

/* Before an object is freed, and after, as vgpu_freeing() and vgpu_freed(): ok says that it was. If it
 * is a device or a client, all below it goes. */
struct vgpu_item *vgpu_object_freeing(uint32_t client, uint32_t object);
void vgpu_object_freed(struct vgpu_item *list, bool ok);
void vgpu_objects_below_freed(uint32_t client, uint32_t object);
/* A descriptor keeps the memory of n objects alive. */
void vgpu_objects_exported(uint32_t client, const uint32_t *object, unsigned n, int fd);

/* What is told of a card's memory (rm_abi.h: FB_...), in KiB, to who asks below that parent. */
uint32_t vgpu_object_told(uint32_t client, uint32_t parent, uint32_t index, uint32_t kib);

/* Marks that this process has non-CUDA work on the card; true the first time. */
bool vgpu_others_begin(int card);
/* True after vgpu_others_begin. */
bool vgpu_others_on(int card);
void vgpu_objects_in_child(void);

#endif
