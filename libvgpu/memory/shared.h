/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h - memory that a file descriptor keeps alive. */
#ifndef VGPU_MEMORY_SHARED_H
#define VGPU_MEMORY_SHARED_H

#include "../base/table.h"

/* Before a descriptor is noted. Its number was given out anew, or is -1: what had it before is closed,
 * as others may be. */
void vgpu_shared_closed(int fd);
/* A descriptor keeps the memory of a handle, or address. False: there is no room, so that after its
 * release nobody would pay for the memory. */
bool vgpu_shared_note(uint64_t handle, int fd);
/* Of a table of addresses, by vgpu_table_sweep: what a descriptor keeps of a range of them is noted.
 * What there is no room for goes, and so stays charged until the process ends. */
struct vgpu_range {
	uint64_t begin, end;
	int fd;
	bool mapped; /* there is the handle of what is mapped in vgpu_item.other */
};
bool vgpu_shared_range(const struct vgpu_item *item, uint64_t range);
/* Before its bytes are given back: if a descriptor of it is open, as many are charged. */
void vgpu_shared_freed(uint64_t handle, int card, uint64_t bytes);
/* And gives them back. */
void vgpu_shared_release(uint64_t handle, int card, uint64_t bytes);
/* Looks again at those that were. */
void vgpu_shared_settle(void);
/* After a fork, in the child: it has none. */
void vgpu_shared_in_child(void);

#endif
