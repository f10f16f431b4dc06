/* SPDX-License-Identifier: Apache-2.0 */
/* event.c - see limiter.h. Events in the streams of the program. */
#ifdef VGPU_PRELOAD
#include "limiter.h"

/* A quarter of the entries that the simulated card's streams take, as a driver's are said to:
 * the program's own events and copies, which nobody counts, are among them. */
#define MAY_BE_FULL 256

__thread bool vgpu_inside;

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

CUresult vgpu_event_query(CUevent e)
{
	int mode = vgpu_capture_relax();
	CUresult r = vgpu_real.cuEventQuery(e);

	vgpu_capture_restore(mode);
	return r;
}

static CUevent event(CUevent *slot)
{
	if (!*slot && vgpu_real.cuEventCreate(slot, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		*slot = NULL;
	return *slot;
}

bool vgpu_event_record(struct lane *l, CUevent *slot)
{
	pthread_mutex_t *lock = &l->context->gate->lock;
	CUstream stream = l->stream;
	CUevent e = event(slot);
	bool ok;

	if (!e)
		return false;
	l->busy = true;
	pthread_mutex_unlock(lock);
	ok = vgpu_real.cuEventRecord(e, stream) == CUDA_SUCCESS;
	pthread_mutex_lock(lock);
	l->busy = false;
	return ok;
}

bool vgpu_event_blocks(const struct lane *l)
{
	unsigned launches = 0;
	bool pushed, done;
	int mode;

	for (unsigned i = 0; i < l->closed + (l->open ? 1u : 0u); i++)
		launches += l->ring[(l->first + i) % RING].launches;
	if (launches < MAY_BE_FULL || !vgpu_real.cuStreamQuery)
		return false;
	mode = vgpu_capture_relax();
	done = vgpu_event_enter(l, &pushed) && vgpu_real.cuStreamQuery(l->stream) == CUDA_SUCCESS;
	vgpu_event_leave(pushed);
	vgpu_capture_restore(mode);
	return !done;
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
