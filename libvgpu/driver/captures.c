/* SPDX-License-Identifier: Apache-2.0 */
/* captures.c - see captures.h. */
#include "captures.h"

VGPU_PRIVATE int vgpu_captures, vgpu_captures_begin;

bool vgpu_captured(CUstream stream, bool unsaid)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	/* As old as captures are. */
	if (!vgpu_real.cuStreamIsCapturing)
		return false;
	return vgpu_real.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS
		       ? status != CU_STREAM_CAPTURE_STATUS_NONE
		       : unsaid;
}

int vgpu_capture_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!vgpu_real.cuThreadExchangeStreamCaptureMode ||
	    vgpu_real.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
		return -1;
	return mode;
}

void vgpu_capture_restore(int mode)
{
	if (mode >= 0)
		vgpu_real.cuThreadExchangeStreamCaptureMode(&mode);
}
