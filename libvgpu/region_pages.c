/* SPDX-License-Identifier: Apache-2.0 */
/* region_pages.c - whether pages of the cache can be had. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "region_ops.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

bool vgpu_has_pages(const void *p, size_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)p & ~(page - 1);

	if (madvise((void *)start, (uintptr_t)p + size - start, MADV_POPULATE_WRITE) == 0 ||
	    (errno != EFAULT && errno != ENOMEM))
		return true;
	errno = ENOSPC;
	return false;
}
