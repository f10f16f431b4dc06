/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - how a call of the driver goes through the gate (launch.c, copies.c). */
#ifndef VGPU_HOOKS_LAUNCH_H
#define VGPU_HOOKS_LAUNCH_H

#include "../compute/compute.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "context.h"

/* A sign of life for gresd; a lost increment does no harm. */
void vgpu_count_launch(CUstream stream);

/* Runs call between the two halves of the gate, if it is closed at all, and returns what that returns, a
 * type of which 0 is success. returns_late: the driver waits in it for the work. */
#define GATED_WORK(type, refusal, stream, key, unknown, returns_late, call)          \
	do {                                                                         \
		struct vgpu_launch launch = {.waits = (returns_late) ||              \
						      unlikely(vgpu_launches_wait)}; \
		type result;                                                         \
                                                                                     \
		if (vgpu_state.grant)                                                \
			vgpu_count_launch(stream);                                   \
		if (likely(!__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED)))      \
			return call;                                                 \
		vgpu_gate_enter(&launch, stream, key, unknown);                      \
		if (unlikely(launch.refused))                                        \
			return refusal;                                              \
		result = call;                                                       \
		vgpu_gate_leave(&launch, (CUresult)result);                          \
		return result;                                                       \
	} while (0)

/* The same of a function of the driver, which may have to be found. */
#define GATED_CALL(real, stream, key, unknown, returns_late, call)                                 \
	do {                                                                                       \
		if (unlikely(!(real))) {                                                           \
			vgpu_need_cuda();                                                          \
			if (!(real))                                                               \
				return CUDA_ERROR_NO_DEVICE;                                       \
		}                                                                                  \
		GATED_WORK(CUresult, CUDA_ERROR_NOT_PERMITTED, stream, key, unknown, returns_late, \
			   call);                                                                  \
	} while (0)

#endif
