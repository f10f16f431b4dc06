/* SPDX-License-Identifier: Apache-2.0 */
/* devices.h - which card of the job a device object of the kernel driver is. */
#ifndef VGPU_JOB_DEVICES_H
#define VGPU_JOB_DEVICES_H

#include "../base/table.h"
#include "../base/util.h"

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

#endif
