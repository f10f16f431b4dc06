/* SPDX-License-Identifier: Apache-2.0 */
/* peak_test.c - the most memory that a job has had in use. */
#include <errno.h>
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

int main(void)
{
	struct vgpu_grant grant = {.ncards = 2};
	char *p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	struct vgpu_cache c;
	struct vgpu_slot *a;
	uint64_t *peak;
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
	vgpu_slot_reclaim(&c);
	nanosleep(&(struct timespec){.tv_nsec = VGPU_GRACE_NS + 1000000}, NULL);
	vgpu_slot_reclaim(&c);

	/* What gresd measured beside the slots counts; what was refused does not. */
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 800, LIMIT, 50), 0);
	CHECK_EQ(peak[0], 850);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 800, LIMIT, 0), -ENOMEM);
	vgpu_mem_release(a, 0, 800);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 10, LIMIT, 0), 0);
	CHECK_EQ(peak[0], 850);
	CHECK_EQ(peak[1], 0);
	return done("peak");
}
