/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.h - the host waits for its work. A wait counts if it is for the last launch: then the card
 * has nothing more to do for this process, and the job gives up the rest of its slice.
 */
#ifndef VGPU_COMPUTE_WAITS_H
#define VGPU_COMPUTE_WAITS_H

#include "compute.h"

/* A launch in a stream. */
void vgpu_waits_launched(int card, CUstream stream);
/* The program records an event in a stream. */
void vgpu_waits_recorded(CUevent event, CUstream stream);
/* A wait begins. Pass the result to vgpu_waited(). */
uint64_t vgpu_wait_begins(void);
/* The host has waited for an event (NULL: none), or for all work of a stream (NULL: of the context). */
void vgpu_waited(CUstream stream, CUevent event, uint64_t began);
/* Called by the watcher. gresd takes a process for busy while it launches. If threads wait for
 * work, this counts another launch each 50 ms. */
void vgpu_waits_tick(uint64_t now);

#endif
