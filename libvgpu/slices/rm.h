/* SPDX-License-Identifier: Apache-2.0 */
/* rm.h - channel groups of this process, learned from ioctl. */
#ifndef VGPU_SLICES_RM_H
#define VGPU_SLICES_RM_H

#include <stdbool.h>
#include <stdint.h>

/* Says which card the channel groups that this thread makes belong to; -1 ends. */
void vgpu_rm_creating(int card);
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
