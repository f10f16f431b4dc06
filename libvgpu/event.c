/* SPDX-License-Identifier: Apache-2.0 */
/* event.c - see limiter.h. Events in the streams of the program. */
#ifdef VGPU_PRELOAD
#include "limiter.h"

static CUevent event(CUevent *slot)
{
	if (!*slot && vgpu_real.cuEventCreate(slot, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		*slot = NULL;
	return *slot;
}

bool vgpu_event_record(CUevent *slot, CUstream stream)
{
	return event(slot) && vgpu_real.cuEventRecord(*slot, stream) == CUDA_SUCCESS;
}

bool vgpu_event_enter(const struct lane *l, bool *pushed)
{
	CUcontext now = NULL;

	*pushed = false;
	if (vgpu_real.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == l->context->ctx)
		return true;
	*pushed = vgpu_real.cuCtxPushCurrent_v2(l->context->ctx) == CUDA_SUCCESS;
	return *pushed;
}

void vgpu_event_leave(bool pushed)
{
	CUcontext popped;

	if (pushed)
		vgpu_real.cuCtxPopCurrent_v2(&popped);
}

bool vgpu_event_between(double *ns, CUevent from, CUevent to)
{
	float ms;

	if (vgpu_real.cuEventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
		return false;
	*ns = (double)ms * 1e6;
	return true;
}
#endif
