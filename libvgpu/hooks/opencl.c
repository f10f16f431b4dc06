/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opencl.c - work that OpenCL puts on a card passes the gate of the hard limit. The mark of a command
 * is its own event. Copies from and to the host are left out, as CUDA's are.
 */
#include "../compute/queues.h"
#include "../driver/others.h"
#include "../job/cards.h"

/* A copy to the host that is this small takes less than what it waits for. */
#define SMALL_READ (1u << 20)

static cl_event event_of(uint64_t handle)
{
	return (cl_event)(uintptr_t)handle;
}

static cl_int status_of(cl_event event)
{
	cl_int status = CL_COMPLETE;

	if (vgpu_others.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status,
				       &status, NULL))
		return CL_COMPLETE;
	return status;
}

/* An error ends it, too. */
static bool ended(const struct vgpu_mark *m)
{
	return status_of(event_of(m->handle)) <= CL_COMPLETE;
}

static bool held(const struct vgpu_mark *m)
{
	return status_of(m->held_by) > CL_COMPLETE;
}

static void drop(const struct vgpu_mark *m)
{
	vgpu_others.clReleaseEvent(event_of(m->handle));
	if (m->held_by)
		vgpu_others.clReleaseEvent(m->held_by);
}

static void keep(void *event)
{
	vgpu_others.clRetainEvent(event);
}

static const struct vgpu_mark_kind kind = {ended, held, drop};

/* What ends in turn with the command: its queue, or, where that runs them in any order, itself. */
static void *turns_with(cl_queue queue, cl_event event)
{
	uint64_t properties = CL_QUEUE_OUT_OF_ORDER;

	if (vgpu_others.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties,
					      &properties, NULL))
		return event;
	return properties & CL_QUEUE_OUT_OF_ORDER ? event : queue;
}

/* An event that the program alone ends, or work that waits for one. */
static void *held_by(const void *before, cl_uint n, const cl_event *wait)
{
	void *by = vgpu_marks_held_by(before, 0, keep);

	for (cl_uint i = 0; i < n && wait && !by; i++) {
		cl_uint type = 0;

		by = vgpu_marks_held_by(NULL, (uintptr_t)wait[i], keep);
		if (by || vgpu_others.clGetEventInfo(wait[i], CL_EVENT_COMMAND_TYPE, sizeof type,
						     &type, NULL))
			continue;
		if (type == CL_COMMAND_USER && status_of(wait[i]) > CL_COMPLETE) {
			by = wait[i];
			keep(by);
		}
	}
	return by;
}

/* The cards that work in the queue may take; 0: those of another vendor. */
static uint32_t cards_of(cl_queue queue, uint32_t cards)
{
	cl_device device = NULL;
	cl_uint vendor = 0;
	CUuuid uuid;
	int card;

	if (vgpu_others.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL))
		return cards;
	if (vgpu_others.clGetDeviceInfo(device, CL_DEVICE_VENDOR_ID, sizeof vendor, &vendor,
					NULL) == 0 &&
	    vendor != VENDOR_NVIDIA)
		return 0;
	if (vgpu_state.ncards == 1 ||
	    vgpu_others.clGetDeviceInfo(device, CL_DEVICE_UUID_KHR, sizeof uuid, &uuid, NULL))
		return cards;
	card = vgpu_card_of_uuid(&uuid);
	return card < 0 ? cards : 1u << card;
}

static bool enter(struct vgpu_submission *s, cl_queue queue)
{
	uint32_t cards = vgpu_queues_cards();

	if (likely(!cards) || !vgpu_others.clGetEventInfo || !vgpu_others.clGetCommandQueueInfo ||
	    !vgpu_others.clGetDeviceInfo || !vgpu_others.clRetainEvent ||
	    !vgpu_others.clReleaseEvent || !vgpu_others.clFlush)
		return false;
	cards = vgpu_queues_gated(cards_of(queue, cards));
	if (!cards)
		return false;
	vgpu_queue_wait(cards);
	vgpu_queue_begin(s, cards);
	return true;
}

/* event: of the command, ours where the program asked for none. It goes to the card at once: what is
 * only queued would be charged. But what the program holds may hold up a flush. */
static void leave(const struct vgpu_submission *s, cl_queue queue, cl_uint n, const cl_event *wait,
		  cl_event event, bool ours, cl_int r)
{
	struct vgpu_mark mark = {.kind = &kind, .handle = (uintptr_t)event};

	if (r || !event) {
		vgpu_queue_leave(s, NULL);
		return;
	}
	if (!ours)
		keep(event);
	mark.queue = turns_with(queue, event);
	mark.held_by = held_by(mark.queue, n, wait);
	vgpu_queue_leave(s, &mark);
	if (!mark.held_by)
		vgpu_others.clFlush(queue);
}

#define HOOK(result, name, params)
#define USE(result, name, params)
#define WORK(result, name, params, args)                      \
	result name params                                    \
	{                                                     \
		cl_event own = NULL, *given = event;          \
		struct vgpu_submission s;                     \
		result r;                                     \
                                                              \
		VGPU_NEED_API(name, CL_INVALID_OPERATION);    \
		if (likely(!enter(&s, queue)))                \
			return vgpu_others.name args;         \
		if (!given)                                   \
			event = &own;                         \
		r = vgpu_others.name args;                    \
		leave(&s, queue, n, wait, *event, !given, r); \
		return r;                                     \
	}
/* The host learns that work has ended, also by an error. */
#define WAIT(result, name, params, args)                   \
	result name params                                 \
	{                                                  \
		VGPU_NEED_API(name, CL_INVALID_OPERATION); \
		result r = vgpu_others.name args;          \
                                                           \
		vgpu_marks_look(true);                     \
		return r;                                  \
	}
#include "../driver/opencl.def"

cl_int clGetEventInfo(cl_event event, cl_uint what, size_t size, void *value, size_t *needed)
{
	VGPU_NEED_API(clGetEventInfo, CL_INVALID_OPERATION);
	cl_int r = vgpu_others.clGetEventInfo(event, what, size, value, needed);

	if (r == 0 && what == CL_EVENT_COMMAND_EXECUTION_STATUS && value && size >= sizeof r &&
	    *(const cl_int *)value <= CL_COMPLETE)
		vgpu_marks_look(true);
	return r;
}

cl_int clEnqueueReadBuffer(cl_queue queue, cl_mem from, cl_bool blocking, size_t at, size_t size,
			   void *to, cl_uint n, const cl_event *wait, cl_event *event)
{
	VGPU_NEED_API(clEnqueueReadBuffer, CL_INVALID_OPERATION);
	cl_int r = vgpu_others.clEnqueueReadBuffer(queue, from, blocking, at, size, to, n, wait,
						   event);

	if (blocking)
		vgpu_marks_look(size <= SMALL_READ);
	return r;
}
