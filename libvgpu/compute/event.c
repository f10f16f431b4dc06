/* SPDX-License-Identifier: Apache-2.0 */
/* event.c - see event.h. Events in the streams of the program. */
#include <time.h>

#include "event.h"

/* A quarter of the entries of a stream of the simulated card. The size of a real stream is not documented;
 * 1,024 is often reported. Calls without a hook add entries that are not counted. */
#define MAY_BE_FULL 256

__thread bool vgpu_inside;
uint32_t vgpu_other_entries;

CUresult vgpu_event_query(CUevent e)
{
	int mode = vgpu_capture_relax();
	CUresult r = vgpu_real.cuEventQuery(e);

	vgpu_capture_restore(mode);
	return r;
}

static CUevent event(CUevent *slot)
{
	int mode;

	if (*slot)
		return *slot;
	mode = vgpu_capture_relax();
	if (vgpu_real.cuEventCreate(slot, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
		*slot = NULL;
	vgpu_capture_restore(mode);
	return *slot;
}

void vgpu_gate_nap(struct gate *g, uint64_t ns)
{
	int cancel;

	pthread_mutex_unlock(&g->lock);
	cancel = vgpu_no_cancel(); /* a lane may be this thread's */
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
	vgpu_cancel_as(cancel);
	pthread_mutex_lock(&g->lock);
}

void vgpu_event_destroy(CUevent *slot)
{
	int mode;

	if (*slot && vgpu_real.cuEventDestroy_v2) {
		mode = vgpu_capture_relax();
		vgpu_real.cuEventDestroy_v2(*slot);
		vgpu_capture_restore(mode);
	}
	*slot = NULL;
}

bool vgpu_event_put(struct gate *g, CUstream stream, CUevent *slot, bool *recording)
{
	CUevent e = event(slot);
	bool ok;

	if (!e)
		return false;
	/* It may begin in this stream. */
	for (unsigned i = 0; i < NAPS && __atomic_load_n(&vgpu_captures_begin, __ATOMIC_SEQ_CST);
	     i++)
		vgpu_gate_nap(g, NAP_NS);
	/* What is put into the legacy stream concerns captures of streams that wait for it: the
	 * driver answers with an error then. */
	ok = !vgpu_stream_captured(stream);
	if (ok) {
		*recording = true;
		pthread_mutex_unlock(&g->lock);
		ok = vgpu_real.cuEventRecord(e, stream) == CUDA_SUCCESS;
		pthread_mutex_lock(&g->lock);
		*recording = false;
	}
	return ok;
}

bool vgpu_event_record(struct lane *l, CUevent *slot)
{
	bool ok;

	l->busy = true;
	ok = vgpu_event_put(l->context->gate, l->stream, slot, &l->recording);
	l->busy = false;
	return ok;
}

bool vgpu_event_blocks(struct lane *l)
{
	uint32_t now = __atomic_load_n(&vgpu_other_entries, __ATOMIC_RELAXED);
	unsigned entries = now - l->passed_entries;
	bool pushed, done;
	int mode;

	for (unsigned i = 0; i < l->closed + (l->open ? 1u : 0u); i++)
		entries += l->ring[(l->first + i) % RING].launches;
	if (!l->open || entries < MAY_BE_FULL || !vgpu_real.cuStreamQuery)
		return false;
	mode = vgpu_capture_relax();
	done = vgpu_event_enter(l->context->ctx, &pushed) && !vgpu_stream_captured(l->stream) &&
	       vgpu_real.cuStreamQuery(l->stream) == CUDA_SUCCESS;
	vgpu_event_leave(pushed);
	vgpu_capture_restore(mode);
	if (done)
		l->passed_entries = now;
	return !done;
}

bool vgpu_event_enter(CUcontext ctx, bool *pushed)
{
	CUcontext now = NULL;

	*pushed = false;
	if (vgpu_real.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == ctx)
		return true;
	*pushed = vgpu_real.cuCtxPushCurrent_v2(ctx) == CUDA_SUCCESS;
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
	int mode = vgpu_capture_relax();
	bool ok = vgpu_real.cuEventElapsedTime(&ms, from, to) == CUDA_SUCCESS;

	vgpu_capture_restore(mode);
	if (ok)
		*ns = (double)ms * 1e6;
	return ok;
}

void vgpu_event_wait(struct gate *g, const struct lane *l)
{
	for (unsigned i = 0; l->busy && i < NAPS; i++)
		vgpu_gate_nap(g, NAP_NS);
}

void vgpu_event_recorded(struct gate *g, const struct lane *l)
{
	for (unsigned i = 0; l->recording && i < NAPS; i++)
		vgpu_gate_nap(g, NAP_NS);
}
