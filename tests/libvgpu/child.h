/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - resets the private state of a forked child, as start/attach.c does. */
#ifndef CHILD_H
#define CHILD_H

#include <string.h>

extern char __start_vgpu_private[], __stop_vgpu_private[];

static inline void private_in_child(void)
{
	memset(__start_vgpu_private, 0, (size_t)(__stop_vgpu_private - __start_vgpu_private));
}

#endif
