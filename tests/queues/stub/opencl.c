/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opencl.c - a libOpenCL for tests: what opencl.c and libvgpu call. A kernel takes as many
 * nanoseconds as its first argument says.
 */
#include "../../../libvgpu/driver/others_abi.h"
#include "card.h"

#define STATUS_QUEUED 3
#define STATUS_RUNNING 1

struct event {
	struct command *command; /* NULL: a user event */
	struct happening user;
	struct event *next; /* of those that were given up, for which a command may still wait */
	int refs;
};
static struct event *past;
struct kernel {
	uint64_t ns;
};

static char platform, device, context, program, buffer;

cl_int clGetPlatformIDs(cl_uint n, void **out, cl_uint *count)
{
	if (out)
		out[0] = &platform;
	if (count)
		*count = 1;
	return 0;
}

cl_int clGetDeviceIDs(void *p, uint64_t type, cl_uint n, void **out, cl_uint *count)
{
	if (out)
		out[0] = &device;
	if (count)
		*count = 1;
	return 0;
}

/* STUB_UUID=GPU-...: which card it is. */
static cl_int uuid(unsigned char *out)
{
	const char *text = getenv("STUB_UUID");

	if (!text)
		return -30;
	text += strlen("GPU-");
	for (unsigned i = 0; i < 16; i++, text += 2) {
		text += *text == '-';
		if (sscanf(text, "%2hhx", &out[i]) != 1)
			return -30;
	}
	return 0;
}

cl_int clGetDeviceInfo(void *d, cl_uint what, size_t size, void *value, size_t *needed)
{
	if (what == CL_DEVICE_UUID_KHR)
		return uuid(value);
	if (what != CL_DEVICE_VENDOR_ID)
		return -30;
	*(cl_uint *)value = VENDOR_NVIDIA;
	return 0;
}

void *clCreateContext(void *props, cl_uint n, void **d, void *notify, void *arg, cl_int *err)
{
	open_card();
	*err = 0;
	return &context;
}

void *clCreateCommandQueue(void *c, void *d, uint64_t props, cl_int *err)
{
	struct queue *q = calloc(1, sizeof *q);

	q->any_order = props & CL_QUEUE_OUT_OF_ORDER;
	*err = 0;
	return q;
}

cl_int clGetCommandQueueInfo(void *q, cl_uint what, size_t size, void *value, size_t *needed)
{
	switch (what) {
	case CL_QUEUE_DEVICE:
		*(void **)value = &device;
		return 0;
	case CL_QUEUE_PROPERTIES:
		*(uint64_t *)value = ((struct queue *)q)->any_order ? CL_QUEUE_OUT_OF_ORDER : 0;
		return 0;
	}
	return -30;
}

void *clCreateProgramWithSource(void *c, cl_uint n, const char **text, size_t *len, cl_int *err)
{
	*err = 0;
	return &program;
}

cl_int clBuildProgram(void *p, cl_uint n, void **d, const char *how, void *notify, void *arg)
{
	return 0;
}

void *clCreateKernel(void *p, const char *name, cl_int *err)
{
	*err = 0;
	return calloc(1, sizeof(struct kernel));
}

cl_int clSetKernelArg(void *k, cl_uint i, size_t size, const void *value)
{
	if (i == 0)
		((struct kernel *)k)->ns = *(const cl_uint *)value;
	return 0;
}

void *clCreateBuffer(void *c, uint64_t flags, size_t size, void *host, cl_int *err)
{
	*err = 0;
	return &buffer;
}

static cl_int work(void *q, double takes, cl_uint n, void *const *wait, void **event)
{
	struct event *e = NULL;
	struct happening *waits = NULL;
	struct command *c;

	for (cl_uint i = 0; i < n; i++) {
		struct event *w = wait[i];

		if (w->command)
			w->user.by = w->command;
		waits = &w->user;
	}
	c = put(q, takes, waits);
	if (!event) {
		pthread_mutex_lock(&card_lock);
		given_up(c);
		pthread_mutex_unlock(&card_lock);
		return 0;
	}
	e = calloc(1, sizeof *e);
	*e = (struct event){.command = c, .refs = 1};
	*event = e;
	return 0;
}

cl_int clEnqueueNDRangeKernel(void *q, void *k, cl_uint dims, const size_t *offset,
			      const size_t *global, const size_t *local, cl_uint n,
			      void *const *wait, void **event)
{
	return work(q, 1e-9 * (double)((struct kernel *)k)->ns, n, wait, event);
}

/* Of 1 GB in a millisecond. */
cl_int clEnqueueFillBuffer(void *q, void *to, const void *pattern, size_t pattern_size, size_t at,
			   size_t size, cl_uint n, void *const *wait, void **event)
{
	return work(q, 1e-12 * (double)size, n, wait, event);
}

void *clCreateUserEvent(void *c, cl_int *err)
{
	struct event *e = calloc(1, sizeof *e);

	e->refs = 1;
	*err = 0;
	return e;
}

cl_int clSetUserEventStatus(void *event, cl_int status)
{
	pthread_mutex_lock(&card_lock);
	((struct event *)event)->user.at = card_now();
	pthread_mutex_unlock(&card_lock);
	return 0;
}

static bool ended(struct event *e)
{
	bool r;

	if (e->command)
		return over(e->command);
	pthread_mutex_lock(&card_lock);
	r = e->user.at > 0;
	pthread_mutex_unlock(&card_lock);
	return r;
}

cl_int clGetEventInfo(void *event, cl_uint what, size_t size, void *value, size_t *needed)
{
	struct event *e = event;
	bool is;

	switch (what) {
	case CL_EVENT_COMMAND_TYPE:
		*(cl_uint *)value = e->command ? 0x11F0 : CL_COMMAND_USER;
		return 0;
	case CL_EVENT_COMMAND_EXECUTION_STATUS:
		is = ended(e);
		*(cl_int *)value = is ? CL_COMPLETE : e->command ? STATUS_RUNNING : STATUS_QUEUED;
		return 0;
	}
	return -30;
}

cl_int clRetainEvent(void *event)
{
	__atomic_add_fetch(&((struct event *)event)->refs, 1, __ATOMIC_RELAXED);
	return 0;
}

cl_int clReleaseEvent(void *event)
{
	struct event *e = event;

	if (__atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL))
		return 0;
	pthread_mutex_lock(&card_lock);
	given_up(e->command);
	if (!e->command || e->user.by) {
		e->next = past;
		past = e;
	} else {
		free(e);
	}
	pthread_mutex_unlock(&card_lock);
	return 0;
}

cl_int clWaitForEvents(cl_uint n, void *const *events)
{
	for (cl_uint i = 0; i < n; i++)
		while (!ended(events[i]))
			card_nap();
	return 0;
}

cl_int clFinish(void *q)
{
	struct command *last;

	pthread_mutex_lock(&card_lock);
	last = kept(((struct queue *)q)->last);
	pthread_mutex_unlock(&card_lock);
	if (!last)
		return 0;
	await(last);
	pthread_mutex_lock(&card_lock);
	given_up(last);
	pthread_mutex_unlock(&card_lock);
	return 0;
}

cl_int clFlush(void *q)
{
	return 0;
}

cl_int clEnqueueReadBuffer(void *q, void *from, cl_bool blocking, size_t at, size_t size, void *to,
			   cl_uint n, void *const *wait, void **event)
{
	return blocking ? clFinish(q) : 0;
}
