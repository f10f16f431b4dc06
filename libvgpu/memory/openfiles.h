/* SPDX-License-Identifier: Apache-2.0 */
/* openfiles.h - finds out whether an open file still exists, in this process or outside of it. The
 * caller serializes all calls. */
#ifndef VGPU_MEMORY_OPENFILES_H
#define VGPU_MEMORY_OPENFILES_H

#include <stdbool.h>
#include <stdint.h>

/* Follows the open file of a descriptor, unless it is followed already, and sets *id. A search for the
 * file returns of. Returns 1 if another followed file had this descriptor before, else 0; -EBADF if the
 * descriptor is closed, or -ENOMEM. */
int vgpu_openfile_follow(int fd, uint64_t of, uint64_t *id);
/* Returns 0 if the file is not followed, or if this process has no other descriptor of it. Also 0 if two
 * open files were followed by this descriptor. */
uint64_t vgpu_openfile_find(int fd);
/* True if any process, or a message in a socket, still has the open file. Unknown counts as true. The
 * answer false ends the following. Between two calls of vgpu_openfiles_begin the set is read at most
 * once. */
bool vgpu_openfile_exists(uint64_t id);
void vgpu_openfiles_begin(void);
/* After a fork, in the child: it follows none. */
void vgpu_openfiles_in_child(void);

#endif
