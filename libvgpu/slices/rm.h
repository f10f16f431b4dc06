/* SPDX-License-Identifier: Apache-2.0 */
/* rm.h - channel groups of this process. */
#ifndef VGPU_SLICES_RM_H
#define VGPU_SLICES_RM_H

#include <stdbool.h>
#include <stdint.h>

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
/* After a fork, in the child: there are none. */
void vgpu_rm_forget(void);

#endif
