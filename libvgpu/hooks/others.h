/* SPDX-License-Identifier: Apache-2.0 */
/* others.h - what the hooks of OpenCL, Vulkan and OpenGL have in common. */
#ifndef VGPU_HOOKS_OTHERS_H
#define VGPU_HOOKS_OTHERS_H

#include "../compute/queues.h"
#include "../driver/others.h"
#include "../job/job.h"

/* The cards on which this process works without CUDA, a bit each; 0: no gate throttles any card. */
static inline uint32_t vgpu_others_cards(void)
{
	return likely(!LOAD(&vgpu_gate_any)) ? 0 : LOAD(&vgpu_state.other_cards);
}

#endif
