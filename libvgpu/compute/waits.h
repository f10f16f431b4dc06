/* SPDX-License-Identifier: Apache-2.0 */
/* waits.h - the host waits for its work. */
#ifndef VGPU_COMPUTE_WAITS_H
#define VGPU_COMPUTE_WAITS_H

#include "../base/util.h"
#include "compute.h"

static inline uint64_t vgpu_wait_begins(void)
{
	return __atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED) ? vgpu_now() : 0;
}

/* The host has waited for all work of a stream (NULL: of the context), or for some of it.
 * Counts when the card then has nothing more to do for it: the job gives up the rest of its
 * slice at each such wait. began: by vgpu_wait_begins(). */
#define VGPU_SOME_WORK ((CUstream)(uintptr_t)-1)
void vgpu_waited(CUstream stream, uint64_t began);

#endif
