/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu.h - what the files of libvgpu.so share, grouped by the defining file.
 *
 * The library is a guest in somebody else's process: it never exits, never
 * prints to stdout, takes no signals, creates no CUDA context, and starts
 * nothing before the first CUDA or NVML call. Inside, functions return 0 or
 * -errno; only the hooks speak CUresult.
 */
#ifndef VGPU_H
#define VGPU_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "base/dl.h"
#include "base/log.h"
#include "base/table.h"
#include "base/util.h"
#include "compute/compute.h"
#include "compute/costs.h"
#include "compute/waits.h"
#include "compute/working.h"
#include "config.h"
#include "driver/captures.h"
#include "driver/cuda_abi.h"
#include "driver/prototypes.h"
#include "driver/real.h"
#include "hooks/hooks.h"
#include "job/ask.h"
#include "job/cards.h"
#include "job/env.h"
#include "job/job.h"
#include "job/tell.h"
#include "memory/account.h"
#include "memory/async.h"
#include "memory/card_count.h"
#include "memory/context_cost.h"
#include "memory/ended.h"
#include "memory/first_use.h"
#include "memory/graph.h"
#include "memory/memory.h"
#include "memory/module.h"
#include "memory/owner.h"
#include "memory/pool.h"
#include "memory/shared.h"
#include "memory/take.h"
#include "memory/told.h"
#include "region_ops.h"

/* For dlsym to return NULL, where NULL leaves the answer to the C library. */
#define VGPU_NOTHING ((void *)-1)
/* What this library exports as dlsym, dlvsym, dlopen and dlmopen. */
void *vgpu_dlsym(void *handle, const char *name);
void *vgpu_dlvsym(void *handle, const char *name, const char *version);
void *vgpu_own_dlopen(const char *file, int mode);
void *vgpu_own_dlmopen(long ns, const char *file, int mode);
/* Which of them stands for the function that handle leads to; NULL: none. */
void *vgpu_loader_hook(void *handle, const char *name, const char *version);

/* rm.c: channel groups of this process, learned from ioctl. */
/* Says which card the channel groups that this thread makes belong to; -1 ends. */
void vgpu_rm_creating(int card);
/* Sets the slice of all channel groups of a card; 0 puts the driver's own back. Reads
 * it back from groups that never had one of ours, and with verify from all. Returns 0,
 * -ENOENT when none is known, or -EPERM when the driver refused or another value was
 * read back. */
int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify);
void vgpu_rm_forget(void);

/* slices.c: keeps the slices at what the grant says. */
void vgpu_slices_apply(int card, const struct vgpu_schedule *s, bool force);

/* hostpid.c: writes this process's pid outside its PID namespace to its slot, 0
 * when it cannot be learned. May wait for gresd for a second or two. */
void vgpu_host_pid(void);

/* watcher.c */
/* Starts the watcher thread of this process, once; does nothing without a grant, and sets vgpu_unwatched
 * where no thread is to be had. */
void vgpu_watcher_start(void);
void vgpu_watcher_in_child(void);

#endif
