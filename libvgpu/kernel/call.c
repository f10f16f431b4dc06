/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - see kernel.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/dl.h"
#include "../driver/real.h"
#include "kernel.h"

int (*vgpu_real_ioctl)(int fd, unsigned long req, ...);

void vgpu_need_ioctl(void)
{
	static bool asked;

	if (likely(vgpu_real_ioctl != NULL))
		return;
	/* Without libdl (old_glibc.h) that walks over objects which come and go: once. */
	if (!vgpu_real_dlsym && !__atomic_load_n(&asked, __ATOMIC_RELAXED))
		vgpu_need_dlsym();
	__atomic_store_n(&asked, true, __ATOMIC_RELAXED);
	if (vgpu_real_dlsym)
		vgpu_real_ioctl =
			(int (*)(int, unsigned long, ...))vgpu_real_dlsym(RTLD_NEXT, "ioctl");
}

int vgpu_rm_call(int fd, unsigned long req, void *arg)
{
	int (*t)(int, unsigned long, void *) = __atomic_load_n(&vgpu_transport, __ATOMIC_ACQUIRE);

	/* Set by the first ioctl. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
	return t ? t(fd, req, arg) : vgpu_real_ioctl(fd, req, arg);
}

int vgpu_rm_control(int fd, uint32_t client, uint32_t object, uint32_t cmd, void *params,
		    uint32_t size)
{
	struct rm_control c = {.client = client,
			       .object = object,
			       .cmd = cmd,
			       .params = (uint64_t)(uintptr_t)params,
			       .params_size = size,
			       .status = 0xffff};

	if (vgpu_rm_call(fd, _IOWR(RM_TYPE, RM_CONTROL, struct rm_control), &c) != 0)
		return -errno;
	return (int)c.status;
}

/* The kernel reads a set of signals before it refuses to do anything with it. Sandboxes allow this
 * call. They may end a program that calls process_vm_readv. */
#define NO_CHANGE (-1)
#define PAGE 4096u

static bool is_readable(uint64_t address, size_t size)
{
	for (uint64_t at = address & ~7ull; at < address + size; at = (at & ~(PAGE - 1ull)) + PAGE)
		if (syscall(SYS_rt_sigprocmask, NO_CHANGE, at, NULL, sizeof(uint64_t)) != 0 &&
		    errno == EFAULT)
			return false;
	return address != 0;
}

bool vgpu_peek(uint64_t from, void *to, size_t size)
{
	return is_readable(from, size) && memcpy(to, (const void *)(uintptr_t)from, size);
}

bool vgpu_poke(uint64_t to, const void *from, size_t size)
{
	return is_readable(to, size) && memcpy((void *)(uintptr_t)to, from, size);
}
