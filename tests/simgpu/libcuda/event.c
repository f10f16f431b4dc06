// SPDX-License-Identifier: Apache-2.0
/* event.c - events: marks in a stream that remember when they were passed. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	CUevent e;

	ENTER(NEED_CTX);
	if (!event || (flags & ~7u) ||
	    ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	e = calloc(1, sizeof(*e));
	if (!e)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	e->magic = MAGIC_EVENT;
	e->ctx = drv_current();
	e->flags = flags;
	*event = e;
	return drv_leave(CUDA_SUCCESS);
}

static bool event_ok(CUevent e)
{
	return e && e->magic == MAGIC_EVENT && !e->destroyed;
}

CUresult cuEventDestroy_v2(CUevent event)
{
	ENTER(NEED_INIT);
	if (!event_ok(event))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	event->destroyed = true;
	event->magic = 0;
	if (!event->pending)
		free(event);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

static CUresult record(CUevent event, CUstream handle)
{
	CUstream s = stream_of(handle);
	struct work w = {.kind = SIM_MARK};
	struct effect *e;
	uint64_t index = 0;
	CUresult rc;

	if (!event_ok(event) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	event->capture_id = s->capture ? s->capture->id : 0;
	if (s->capture) /* in a graph an event only joins streams */
		return s->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	if (event->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	e = effect_new(EFF_EVENT);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->event = event;
	event->pending++;
	w.eff = e;
	event->recorded = true;
	event->complete = false;
	e->record = ++event->record;
	rc = stream_submit(s, &w, &index);
	if (rc)
		return rc;
	event->stream = s->slot;
	event->gen = s->gen;
	event->index = index;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(record(event, hStream));
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream hStream, unsigned flags)
{
	ENTER(NEED_CTX);
	return drv_leave(flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, hStream));
}

/* Whether an event has been passed says nothing as long as its record is part of a graph: to ask
 * spoils the capture, whatever mode the thread is in. */
static CUresult ask(CUevent event)
{
	struct capture *c = capture_by_id(event->capture_id);
	CUresult rc = capture_unsafe();

	if (c)
		c->invalid = true;
	return !rc && event->capture_id ? CUDA_ERROR_CAPTURED_EVENT : rc;
}

CUresult cuEventQuery(CUevent event)
{
	CUresult rc;

	ENTER(NEED_INIT);
	if (!event_ok(event))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	rc = ask(event);
	if (rc || !event->recorded || event->complete)
		return drv_leave(rc);
	drv_model_lock();
	sim_advance_all(drv.st);
	drv_model_unlock();
	effects_take();
	return drv_leave(event->complete ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult rc;

	ENTER(NEED_INIT);
	if (!event_ok(event))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	rc = ask(event);
	if (!rc && event->recorded && !event->complete)
		rc = stream_wait(event->stream, event->gen, event->index);
	if (!rc && event->recorded && event_ok(event)) {
		freed_seen(event->stream, event->gen, event->index);
		pools_end();
	}
	return drv_leave(rc);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	ENTER(NEED_INIT);
	if (!ms)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (!event_ok(start) || !event_ok(end) || !start->recorded || !end->recorded ||
	    ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!start->complete || !end->complete) {
		drv_model_lock();
		sim_advance_all(drv.st);
		drv_model_unlock();
		effects_take();
	}
	if (!start->complete || !end->complete)
		return drv_leave(CUDA_ERROR_NOT_READY);
	*ms = (float)((double)(int64_t)(end->done_ns - start->done_ns) / 1e6);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	return cuEventElapsedTime(ms, start, end);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent event, unsigned flags)
{
	struct work w = {.kind = SIM_WAIT};
	uint64_t at = 0;
	CUstream s;
	CUresult rc;

	ENTER(NEED_CTX);
	s = stream_of(hStream);
	if (!event_ok(event) || !s)
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	if (flags > 1)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	if (event->capture_id) { /* the stream joins the capture; its work follows in order */
		struct capture *c = capture_by_id(event->capture_id);

		if (!s->capture)
			s->capture = c;
		return drv_leave(c && s->capture == c ? CUDA_SUCCESS : CUDA_ERROR_CAPTURED_EVENT);
	}
	if (s->capture || !event->recorded || event->complete)
		return drv_leave(CUDA_SUCCESS);
	w.dep_stream = event->stream;
	w.dep_gen = event->gen;
	w.dep_index = event->index;
	rc = stream_submit(s, &w, &at);
	if (!rc)
		stream_after(s, at, event);
	return drv_leave(rc);
}
