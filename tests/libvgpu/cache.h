/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h - a cache in memory, for the tests of region_ops.c. */
#ifndef CACHE_H
#define CACHE_H

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../libvgpu/region_ops.h"
#include "check.h"

#define LIMIT 1000u

static struct vgpu_grant grant;

static struct vgpu_cache new_cache(void)
{
	struct vgpu_cache c;
	char *p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	CHECK(p != MAP_FAILED);
	c.header = (void *)(p + VGPU_CACHE_OFFSET);
	c.slots = (void *)(p + VGPU_SLOTS_OFFSET);
	vgpu_cache_init(c.header, &grant);
	return c;
}

static inline uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static inline unsigned reclaim(struct vgpu_cache *c)
{
	uint64_t left;

	return vgpu_slot_reclaim(c, NULL, NULL, &left);
}

static struct vgpu_slot *claim(struct vgpu_cache *c)
{
	uint32_t pid = (uint32_t)getpid();

	return vgpu_slot_claim(c, pid, vgpu_start_time(pid));
}

#endif
