/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - what a process asks of the kernel driver by ioctl, whatever API it speaks. What OpenCL,
 * Vulkan and OpenGL take of a card is charged here. What libcuda takes is charged where the program asks
 * for it.
 */
#ifndef VGPU_KERNEL_KERNEL_H
#define VGPU_KERNEL_KERNEL_H

#include "../base/table.h"
#include "../base/util.h"
#include "rm_abi.h"

/* ---------------------------------------------------------------------- call.c: calls of our own */
/* The C library's own ioctl, or that of a preload after this one; NULL until it is found, and where
 * the program has no libdl (old_glibc.h): then it has no driver either. */
extern int (*vgpu_real_ioctl)(int fd, unsigned long req, ...);
void vgpu_need_ioctl(void);

/* As ioctl; with the simulated driver its answer. vgpu_need_ioctl() was called. */
int vgpu_rm_call(int fd, unsigned long req, void *arg);
/* One control: its status, or -errno. */
int vgpu_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
		    uint32_t size);

/* Copies the program's memory, which the kernel reads or has read, and a thread of it may have
 * given back since. */
bool vgpu_peek(uint64_t from, void *to, size_t size);
bool vgpu_poke(uint64_t to, const void *from, size_t size);

/* --------------------------------------------- devices.c: which card of the job a device object is */
/* A client has made a device, whose parameters are there, or a subdevice of one. ask: nobody else
 * will say which card it is: the kernel driver is asked. */
void vgpu_device_made(int fd, uint32_t client, uint32_t object, uint64_t params, bool ask);
void vgpu_subdevice_made(uint32_t client, uint32_t parent, uint32_t object);
/* What was freed is one of them, or a client: what is below it is gone, too. */
bool vgpu_device_freed(uint32_t client, uint32_t object);

/* The device that an object stands for: itself, or a subdevice's; 0: it is not known. */
uint32_t vgpu_device_of(uint32_t client, uint32_t object);
/* The card of what has this parent: the job's only one; -1: not known. */
int vgpu_card_below(uint32_t client, uint32_t parent);
/* A device is this card. */
void vgpu_device_is(uint32_t client, uint32_t parent, int card);

/* For tables of a client's objects. owner: the device of an object; other: its parent. */
static inline uint64_t vgpu_object_key(uint32_t client, uint32_t object)
{
	return (uint64_t)client << 32 | object;
}
/* For vgpu_table_detach_if: an item goes with a freed object, which it is or which is above it. */
bool vgpu_object_goes(const struct vgpu_item *item, uint64_t freed);

/* ----------------------------------------------------------------- objects.c: memory of the card */
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

/* --------------------------------------------------- groups.c: channel groups of this process */
/* Says which card the channel groups that this thread makes belong to; -1 ends. */
void vgpu_rm_creating(int card);
bool vgpu_rm_creates(void);
/* A client has made a group below a device, or freed an object: a group, or what it is below. True:
 * the client is libcuda's, for it has a group that was made for a context. */
bool vgpu_rm_group_made(int fd, uint32_t client, uint32_t parent, uint32_t object);
void vgpu_rm_freed(uint32_t client, uint32_t object);
/* Sets the slice of all channel groups of a card; 0 puts the driver's own back. Reads
 * it back from groups that never had one of ours, and with verify from all. Returns 0,
 * -ENOENT when none was ever known, -ESRCH when those that were are gone, or -EPERM when
 * the driver refused, another value was read back, or there are groups that are not known. */
int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify);
/* Whether groups have come that no context's creation was for, since the last call. */
bool vgpu_rm_grown(void);

/* -------------------------------------------------------- calls from here to rooms further right */
/* Work on a card begins: see hooks/context.h. */
void vgpu_context_began(int card);
/* See life/watcher.h. */
void vgpu_watcher_start(void);

#endif
