/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - the ioctls of a process to the kernel driver. The library charges the memory of OpenCL,
 * Vulkan and OpenGL here. The hooks of CUDA's functions charge the memory of libcuda.
 */
#ifndef VGPU_KERNEL_KERNEL_H
#define VGPU_KERNEL_KERNEL_H

#include "../base/table.h"
#include "../base/util.h"
#include "rm_abi.h"

/* ---------------------------------------------------------------------- call.c: calls of our own */
/* The ioctl of the C library, or of the next preload. NULL before vgpu_need_ioctl(). Also NULL if the
 * program has no libdl (old_glibc.h): such a program has no driver. */
extern int (*vgpu_real_ioctl)(int fd, unsigned long req, ...);
void vgpu_need_ioctl(void);

/* Calls ioctl, or the simulated driver. Call vgpu_need_ioctl() before. */
int vgpu_rm_call(int fd, unsigned long req, void *arg);
/* One control: its status, or -errno. */
int vgpu_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
		    uint32_t size);

/* Copies memory of the program. False: a thread of the program has freed it. */
bool vgpu_peek(uint64_t from, void *to, size_t size);
bool vgpu_poke(uint64_t to, const void *from, size_t size);

/* --------------------------------------------- devices.c: which card of the job a device object is */
/* A client has made a device with these parameters, or a subdevice. ask: no call of libcuda shows the card
 * of this device, so the function asks the kernel driver. */
void vgpu_device_made(int fd, uint32_t client, uint32_t object, uint64_t params, bool ask);
void vgpu_subdevice_made(uint32_t client, uint32_t parent, uint32_t object);
/* True: the freed object is a device, a subdevice or a client. The objects below it are gone, too. */
bool vgpu_device_freed(uint32_t client, uint32_t object);

/* Returns the device itself, or the device of a subdevice; 0: unknown. */
uint32_t vgpu_device_of(uint32_t client, uint32_t object);
/* Returns the card of the objects below this parent; -1: unknown. */
int vgpu_card_below(uint32_t client, uint32_t parent);
/* A device is this card. */
void vgpu_device_is(uint32_t client, uint32_t parent, int card);

/* For tables of a client's objects. owner: the device of an object; other: its parent. */
static inline uint64_t vgpu_object_key(uint32_t client, uint32_t object)
{
	return (uint64_t)client << 32 | object;
}
/* For vgpu_table_detach_if: the item is the freed object, or is below it. */
bool vgpu_object_goes(const struct vgpu_item *item, uint64_t freed);

/* ----------------------------------------------------------------- objects.c: memory of the card */
/* A process can have this number of objects. The library refuses memory for more. */
#define VGPU_MAX_MEMORY_OBJECTS 65536u

/* A request for memory. */
struct vgpu_object {
	uint32_t client, parent, object;
	uint64_t bytes;
	int card; /* that is charged */
};
/* Charges the memory before the call. Returns 0, or -ENOMEM after a message to the user. */
int vgpu_object_take(struct vgpu_object *asked);
/* Corrects the charge after the call. made: the object with its real size; NULL: the call failed. */
void vgpu_object_taken(const struct vgpu_object *asked, const struct vgpu_object *made);

/* The steps before and after the free of an object, as vgpu_freeing() and vgpu_freed(). */
struct vgpu_item *vgpu_object_freeing(uint32_t client, uint32_t object);
void vgpu_object_freed(struct vgpu_item *list, bool ok);
/* A device or a client is freed, with all objects below it. */
void vgpu_objects_below_freed(uint32_t client, uint32_t object);
/* A descriptor keeps the memory of n objects alive. */
void vgpu_objects_exported(uint32_t client, const uint32_t *object, unsigned n, int fd);

/* Returns the value of a property of the card's memory (rm_abi.h: FB_...) under the limit, in KiB. */
uint32_t vgpu_object_told(uint32_t client, uint32_t parent, uint32_t index, uint32_t kib);

/* --------------------------------------------------- groups.c: channel groups of this process */
/* Sets the card of the channel groups that this thread makes from now on; -1: unknown. */
void vgpu_rm_creating(int card);
bool vgpu_rm_creates(void);
/* A client has made a group below a device. True: the client belongs to libcuda, because it has a group of
 * a context. */
bool vgpu_rm_group_made(int fd, uint32_t client, uint32_t parent, uint32_t object);
/* A client has freed an object: a group, a device or itself. */
void vgpu_rm_freed(uint32_t client, uint32_t object);
/* Sets the slice of all channel groups of a card; 0 restores the slice of the driver. Reads the slice
 * back from groups that had none of ours, and with verify from all. Returns -ENOENT if no group was ever
 * known, and -ESRCH if all known groups are gone. Returns -EPERM if the driver refused or has another
 * value, or if there are unknown groups. */
int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify);
/* True: groups that belong to no new context have come since the last call. */
bool vgpu_rm_grown(void);

/* -------------------------------------------------------- calls from here to rooms further right */
/* Work on a card begins: see hooks/context.h. */
void vgpu_context_began(int card);
/* See life/watcher.h. */
void vgpu_watcher_start(void);

#endif
