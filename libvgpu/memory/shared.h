/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h - memory that a file descriptor keeps alive. */
#ifndef VGPU_MEMORY_SHARED_H
#define VGPU_MEMORY_SHARED_H

#include <stdbool.h>
#include <stdint.h>

/* A handle was exported as a descriptor; alone: that keeps no other's memory. False: there is no
 * room, so that after its release nobody would pay for the memory. */
bool vgpu_shared_note(uint64_t handle, int fd, bool alone);
/* Gives bytes back unless a descriptor of the handle is open. */
void vgpu_shared_release(uint64_t handle, int card, uint64_t bytes);
/* Looks again at those that were. */
void vgpu_shared_settle(void);
/* After a fork, in the child: it has none. */
void vgpu_shared_in_child(void);

#endif
