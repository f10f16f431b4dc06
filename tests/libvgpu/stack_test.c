/* SPDX-License-Identifier: Apache-2.0 */
/* stack_test.c - the watcher's stack has room for its work beside all thread-local variables, by
 * whatever glibc: no function of it is asked for how much those take. */
#include "../../libvgpu/life/watcher.c"

#include "cache.h"

#define WORK (200u << 10)

struct vgpu_state vgpu_state;
void (*vgpu_unwatched)(void);
static __thread volatile char large[WORK];
static uint32_t worked;

/* As the driver's and NVML's calls do. */
bool vgpu_gate_tick(void)
{
	volatile char stack[WORK];

	for (size_t i = 0; i < sizeof stack; i += 1024)
		stack[i] = large[i] = 1;
	__atomic_store_n(&worked, 1, __ATOMIC_RELEASE);
	return false;
}

bool vgpu_marks_look(bool now)
{
	(void)now;
	return false;
}

void vgpu_gate_schedule(int card, const struct vgpu_schedule *s)
{
	(void)card;
	(void)s;
}

void vgpu_slices_apply(int card, const struct vgpu_schedule *s, enum vgpu_look look)
{
	(void)card;
	(void)s;
	(void)look;
}

bool vgpu_rm_grown(void)
{
	return false;
}

void vgpu_waits_tick(uint64_t now)
{
	(void)now;
}

void vgpu_memory_tick(uint64_t now)
{
	(void)now;
}

void vgpu_host_pid(void)
{
}

int main(void)
{
	vgpu_state.cache = new_cache();
	vgpu_state.grant = &grant;
	vgpu_state.ncards = 1;
	vgpu_state.slot = claim(&vgpu_state.cache);
	vgpu_watcher_start();
	while (!__atomic_load_n(&worked, __ATOMIC_ACQUIRE))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	CHECK_EQ(vgpu_state.slot->flags & VGPU_SLOT_UNWATCHED, 0);
	return done("stack_test");
}
