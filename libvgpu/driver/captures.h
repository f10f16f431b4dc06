/* SPDX-License-Identifier: Apache-2.0 */
/* captures.h - stream captures, which a call of the driver by this library can spoil. */
#ifndef VGPU_DRIVER_CAPTURES_H
#define VGPU_DRIVER_CAPTURES_H

#include "real.h"

/* Number of stream captures open in this process; the hooks count. */
extern int vgpu_captures;
/* Calls that begin one, or let a stream join one, and have not returned. */
extern int vgpu_captures_begin;

static inline bool vgpu_capturing(void)
{
	return __atomic_load_n(&vgpu_captures, __ATOMIC_ACQUIRE) > 0;
}

/* Beside a capture event calls are made in a mode that excepts this thread. A driver before CUDA
 * 10.1 has none: there any of them would spoil it. */
static inline bool vgpu_events_barred(void)
{
	return unlikely(vgpu_capturing()) && !vgpu_real.cuThreadExchangeStreamCaptureMode;
}

/* A stream is captured now, also by a capture that is not counted above; unsaid is the answer where
 * the driver does not say. */
bool vgpu_captured(CUstream stream, bool unsaid);
/* What is asked of a stream or of an event that is recorded in it may spoil a capture. */
static inline bool vgpu_stream_captured(CUstream stream)
{
	return vgpu_captured(stream, true);
}

/* Around a question to the driver that would spoil a capture. One that began by a call
 * that this library does not know is not counted above: as long as this thread says that it is
 * relaxed about captures, its questions do none any harm. */
int vgpu_capture_relax(void);
void vgpu_capture_restore(int mode);

#endif
