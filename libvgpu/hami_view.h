/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hami_view.h - the head of the cache file, laid out as HAMi-core v1.2.
 *
 * Tools that read HAMi-core's shared region (its monitor, parsers of the
 * format) read these bytes. They are a copy for display, rebuilt from the
 * slots about once a second; nothing in libvgpu reads a limit or a usage from
 * them, so a tool that writes here changes what is shown for a second at most.
 *
 * Readers of HAMi-core wait while a slot's seqlock is odd, without an end. A
 * writer can be killed at any point, so ours is never odd: it moves by two
 * before and after each change. A reader sees every number whole; numbers read
 * during a change may be of two moments.
 *
 * Fields called seen_* lie in bytes that HAMi-core calls unused. They hold what
 * the previous update saw, and only our writer uses them.
 */
#ifndef VGPU_HAMI_VIEW_H
#define VGPU_HAMI_VIEW_H

#include "region_ops.h"

#define VGPU_HAMI_MAGIC 19920718
#define VGPU_HAMI_MAJOR 1
#define VGPU_HAMI_MINOR 2
#define VGPU_HAMI_DEVICES 16
#define VGPU_HAMI_PROCS 1024
#define VGPU_HAMI_UUID_LEN 96
#define VGPU_HAMI_SEM_LEN 32 /* sem_t of glibc on 64-bit machines */

/* Bytes; total = context + module + data. */
struct vgpu_hami_mem {
	uint64_t context;
	uint64_t module;
	uint64_t data;
	uint64_t offset;
	uint64_t total;
	uint64_t unused[3];
};

/* Percent of the card, 0..100. */
struct vgpu_hami_util {
	uint64_t dec;
	uint64_t enc;
	uint64_t sm;
	uint64_t seen_gpu_ns;
	uint64_t seen_launches;
	uint64_t unused;
};

/* One process; pid 0: none. View slot i shows cache slot i. */
struct vgpu_hami_proc {
	int32_t pid;
	int32_t host_pid; /* 0: not known */
	struct vgpu_hami_mem used[VGPU_HAMI_DEVICES];
	uint64_t monitor_used[VGPU_HAMI_DEVICES]; /* bytes */
	struct vgpu_hami_util util[VGPU_HAMI_DEVICES];
	int32_t status; /* 0: no process, 1: running, 2: suspended */
	uint32_t padding;
	uint64_t seqlock;
	uint64_t seen_owner;
	uint64_t seen_ns;
};

struct vgpu_hami {
	int32_t initialized; /* VGPU_HAMI_MAGIC, stored when the rest is there */
	uint32_t major;
	uint32_t minor;
	int32_t sm_init_flag;
	uint64_t owner_pid;
	uint8_t sem[VGPU_HAMI_SEM_LEN];
	uint64_t device_num;
	char uuid[VGPU_HAMI_DEVICES][VGPU_HAMI_UUID_LEN];
	uint64_t limit[VGPU_HAMI_DEVICES];    /* bytes; 0: no limit */
	uint64_t sm_limit[VGPU_HAMI_DEVICES]; /* percent; 100: no limit */
	struct vgpu_hami_proc proc[VGPU_HAMI_PROCS];
	int32_t proc_num;           /* slots [0, proc_num) may show a process */
	int32_t utilization_switch; /* 1: the compute limit is held */
	int32_t recent_kernel;      /* 2: work was launched since the last update */
	int32_t priority;           /* 0: high, 1: normal */
	uint64_t last_kernel_time;  /* seconds of CLOCK_REALTIME; 0: never */
	uint8_t sem_postinit[VGPU_HAMI_SEM_LEN];
};

/* Behind the view. HAMi-core writes the one byte after its region. */
struct vgpu_hami_notes {
	uint64_t updated_ns; /* CLOCK_REALTIME of the last update */
};
#define VGPU_HAMI_NOTES_OFFSET 2008960u

/* One process of the job updates in each period. */
#define VGPU_HAMI_PERIOD_NS 1000000000u

/* Rebuilds the view of a cache file, mapped at file_start, unless that was done
 * less than a period ago; now is CLOCK_REALTIME in nanoseconds. Any process of
 * the job may call it at any time: a call that is not needed costs one load,
 * calls at the same time do no harm, and what a killed one leaves behind is
 * readable and put right by the next. Touches only the view and the notes. */
void vgpu_hami_view_update(void *file_start, const struct vgpu_grant *g, const struct vgpu_cache *c,
			   uint64_t now);

_Static_assert(sizeof(struct vgpu_hami_mem) == 64, "vgpu_hami_mem");
_Static_assert(sizeof(struct vgpu_hami_util) == 48, "vgpu_hami_util");
_Static_assert(sizeof(struct vgpu_hami_proc) == 1960, "vgpu_hami_proc");
VGPU_AT(vgpu_hami, proc, 1856);
_Static_assert(sizeof(struct vgpu_hami) == VGPU_HAMI_SIZE, "vgpu_hami");
_Static_assert(VGPU_HAMI_NOTES_OFFSET > VGPU_HAMI_SIZE, "notes");
_Static_assert(VGPU_HAMI_NOTES_OFFSET + sizeof(struct vgpu_hami_notes) <= VGPU_CACHE_OFFSET,
	       "notes");
_Static_assert(VGPU_HAMI_DEVICES == VGPU_MAX_CARDS, "devices");

#endif
