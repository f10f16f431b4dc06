/* SPDX-License-Identifier: Apache-2.0 */
/* peak_test.c - the most memory that a job has had in use. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libvgpu/region_ops.h"
#include "check.h"

#define LIMIT 1000u

static struct vgpu_slot *claim(struct vgpu_cache *c)
{
	uint32_t pid = (uint32_t)getpid();

	return vgpu_slot_claim(c, pid, vgpu_start_time(pid));
}

/* A file system that is full has no page for one more slot, like the part of a
 * file behind its end here: no slot, rather than SIGBUS. */
static void test_no_page_for_a_slot(const struct vgpu_grant *grant)
{
	char name[] = "/tmp/vgpu-region-XXXXXX";
	int fd = mkstemp(name), slots = 0;
	struct vgpu_cache c;
	char *p;

	CHECK(fd >= 0 && unlink(name) == 0);
	CHECK(ftruncate(fd, (off_t)(VGPU_SLOTS_OFFSET + 8 * sizeof(struct vgpu_slot))) == 0);
	p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	c.header = (void *)(p + VGPU_CACHE_OFFSET);
	c.slots = (void *)(p + VGPU_SLOTS_OFFSET);
	vgpu_cache_init(c.header, grant);
	if (emulated() || madvise(p, 1, MADV_POPULATE_WRITE) != 0)
		return; /* QEMU heeds no such advice, nor does Linux before 5.14 */
	while (slots < 100 && claim(&c))
		slots++;
	CHECK_EQ(errno, ENOSPC);
	CHECK(slots >= 8 && slots < 8 + getpagesize() / (int)sizeof(struct vgpu_slot) + 1);
	CHECK_EQ(c.header->high_slot, (uint32_t)slots);
	CHECK(munmap(p, VGPU_CACHE_SIZE) == 0 && close(fd) == 0);
}

int main(void)
{
	struct vgpu_grant grant = {.ncards = 2};
	char *p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	struct vgpu_cache c;
	struct vgpu_slot *a;
	uint64_t *peak, left;
	pid_t pid;

	CHECK(p != MAP_FAILED);
	c.header = (void *)(p + VGPU_CACHE_OFFSET);
	c.slots = (void *)(p + VGPU_SLOTS_OFFSET);
	vgpu_cache_init(c.header, &grant);
	peak = c.header->mem_peak;
	a = claim(&c);

	/* What a process held that has ended is not added to what comes after it. */
	pid = fork();
	if (pid == 0)
		_exit(vgpu_mem_reserve(&c, claim(&c), 0, 700, LIMIT, 0) ? 1 : 0);
	CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
	CHECK_EQ(peak[0], 700);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 200, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 900); /* within the grace of the dead */
	CHECK_EQ(peak[0], 700);
	vgpu_mem_release(a, 0, 200);
	vgpu_slot_reclaim(&c, NULL, NULL, &left);
	nanosleep(&(struct timespec){.tv_nsec = VGPU_GRACE_NS + 1000000}, NULL);
	vgpu_slot_reclaim(&c, NULL, NULL, &left);

	/* What gresd measured beside the slots counts; what was refused does not. */
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 800, LIMIT, 50), 0);
	CHECK_EQ(peak[0], 850);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 800, LIMIT, 0), -ENOMEM);
	vgpu_mem_release(a, 0, 800);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 10, LIMIT, 0), 0);
	CHECK_EQ(peak[0], 850);
	CHECK_EQ(peak[1], 0);
	test_no_page_for_a_slot(&grant);
	return done("peak");
}
