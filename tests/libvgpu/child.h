/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - what start/attach.c does in a forked child. */
#ifndef CHILD_H
#define CHILD_H

#include <string.h>

extern char __start_vgpu_private[], __stop_vgpu_private[];

static inline void private_in_child(void)
{
	memset(__start_vgpu_private, 0, (size_t)(__stop_vgpu_private - __start_vgpu_private));
}

#endif
