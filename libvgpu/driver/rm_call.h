/* SPDX-License-Identifier: Apache-2.0 */
/* rm_call.h - the way to the kernel driver's resource manager. */
#ifndef VGPU_DRIVER_RM_CALL_H
#define VGPU_DRIVER_RM_CALL_H

#include "../base/util.h"
#include "rm_abi.h"

/* The C library's own ioctl, or that of a preload after this one; NULL until it is found, and where
 * the program has no libdl (old_glibc.h): then it has no driver either. */
extern int (*vgpu_real_ioctl)(int fd, unsigned long req, ...);
void vgpu_need_ioctl(void);

/* As ioctl; with the simulated driver its answer. vgpu_need_ioctl() was called. */
int vgpu_rm_call(int fd, unsigned long req, void *arg);
/* One control: its status, or -errno. */
int vgpu_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
		    uint32_t size);

/* Copies the program's memory, which the kernel reads or has read, and a thread of it may have
 * given back since. */
bool vgpu_peek(uint64_t from, void *to, size_t size);
bool vgpu_poke(uint64_t to, const void *from, size_t size);

#endif
