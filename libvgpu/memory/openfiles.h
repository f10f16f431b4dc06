/* SPDX-License-Identifier: Apache-2.0 */
/* openfiles.h - finds out whether an open file still exists, in this process or outside of it. The
 * caller serializes all calls. */
#ifndef VGPU_MEMORY_OPENFILES_H
#define VGPU_MEMORY_OPENFILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct vgpu_openfile {
	int fd; /* its first number; -1: another file has this number now */
	bool marked;
	dev_t dev, rdev;
	ino_t ino;
	uint64_t entry; /* in the epoll set; 0: none */
	uint64_t seen;  /* the last reading of the set that listed the entry */
};

/* Follows the open file of a descriptor. False: the process has no memory or no descriptor for it. */
bool vgpu_openfile_follow(struct vgpu_openfile *f, int fd);
void vgpu_openfile_unfollow(const struct vgpu_openfile *f);
/* True if the number still belongs to this open file. An unknown state counts as true. */
bool vgpu_openfile_has_number(const struct vgpu_openfile *f);
/* True if any process, or a message in a socket, still has the open file. Unknown counts as true.
 * Between two calls of vgpu_openfiles_begin the set is read at most once. */
bool vgpu_openfile_exists(const struct vgpu_openfile *f);
void vgpu_openfiles_begin(void);
/* After a fork, in the child: it follows none. */
void vgpu_openfiles_in_child(void);

#endif
