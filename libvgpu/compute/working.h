/* SPDX-License-Identifier: Apache-2.0 */
/* working.h - whether the last launch of this process still runs. */
#ifndef VGPU_COMPUTE_WORKING_H
#define VGPU_COMPUTE_WORKING_H

#include "../base/util.h"
#include "../driver/cuda_abi.h"

/* The stream of a launch. */
void vgpu_working_note(int card, CUstream stream);
/* A stream or context is about to go; both NULL: all. */
void vgpu_working_forget(CUstream stream, CUcontext ctx);
/* A capture begins: counts vgpu_captures. */
void vgpu_working_capture(void);
/* The watcher's look. */
void vgpu_working_tick(uint64_t now);
/* Whether the stream of the last launch still works; false when that is not known. */
bool vgpu_working(int card);
/* Whether that is the stream. */
bool vgpu_working_is(int card, CUstream stream);
/* After a fork, in the child: nothing was launched. */
void vgpu_working_in_child(void);

#endif
