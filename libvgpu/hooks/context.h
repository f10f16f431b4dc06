/* SPDX-License-Identifier: Apache-2.0 */
/* context.h - contexts come and go. */
#ifndef VGPU_HOOKS_CONTEXT_H
#define VGPU_HOOKS_CONTEXT_H

#include <stdbool.h>

#include "../driver/cuda_abi.h"

/* CUDA_LAUNCH_BLOCKING is set: every launch waits for its work. */
extern bool vgpu_launches_wait;

/* A context of a card is usable: slices are set, the gate follows gresd, the watcher runs. */
void vgpu_context_began(int card);
void vgpu_context_ended(int card);
/* One is there that no hook saw being made. */
void vgpu_context_seen(int card);
/* A context has ended, and the captures of its streams; NULL: none has. */
void vgpu_captures_ended(CUcontext ctx);

#endif
