/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attach.c - what a process does when it first asks for CUDA or NVML, and what a child of it
 * does after a fork: the one place that knows all rooms.
 */
#include <string.h>

#include "../base/dl.h"
#include "../base/log.h"
#include "../base/table.h"
#include "../compute/compute.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"
#include "../job/tell.h"
#include "../life/watcher.h"
#include "../memory/memory.h"

/* What is VGPU_PRIVATE. */
extern char __start_vgpu_private[], __stop_vgpu_private[];

static pthread_once_t attach_once = PTHREAD_ONCE_INIT;

/* The parent's slot, memory, channel groups and locks are not ours. */
static void in_child(void)
{
	memset(__start_vgpu_private, 0, (size_t)(__stop_vgpu_private - __start_vgpu_private));
	vgpu_real_in_child();
	vgpu_job_in_child();
	vgpu_shared_in_child();
	vgpu_gate_in_child();
	vgpu_watcher_in_child();
}

static void attach(void)
{
	void *clock = vgpu_of_libc("clock_gettime");
	bool found;

	if (clock)
		vgpu_clock = (int (*)(clockid_t, struct timespec *))clock;
	vgpu_tell_settings();
	vgpu_log_settings();
	vgpu_cards_settings();
	found = vgpu_job_find();
	pthread_atfork(NULL, NULL, in_child);
	if (found)
		vgpu_tell_grant();
}

void vgpu_attach(void)
{
	pthread_once(&attach_once, attach);
	vgpu_job_claim();
}
