// SPDX-License-Identifier: Apache-2.0
/*
 * rm.c - the resource manager behind the driver, and how libcuda speaks to it.
 *
 * As on a real machine, libcuda allocates a device object for each card and
 * four channel groups for each context through ioctl() on a control node, so
 * that a preloaded ioctl sees the handles. There is no such node here: the
 * call goes to /dev/null, fails, and is answered by vgpu_rm_transport, which
 * a preloaded library may call itself instead of the kernel.
 *
 * Numbers: ../rm_abi.h, and NVIDIA open-gpu-kernel-modules, cl0080.h, cla06c.h, ctrla06c.h.
 */
#define _GNU_SOURCE
#include "../rm_abi.h"
#include "local.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CLASS_ROOT 0x41u
#define CLASS_DEVICE 0x80u
#define CLASS_GROUP 0xA06Cu
#define SET_TIMESLICE 0xA06C0103u
#define GET_TIMESLICE 0xA06C0104u

#define HANDLE_ROOT 0xc1d00001u
#define HANDLE_DEVICE 0x5c000080u /* + card */
#define HANDLE_GROUP 0x5c100000u  /* + context slot * 4 + group */
#define GROUPS 4
#define MAX_OBJECTS (SIM_MAX_CTX * GROUPS)

struct device_params {
	uint32_t device_id;
	uint32_t rest[5];
	uint64_t more[4];
};

static struct object {
	uint32_t handle, parent, cls;
} objects[MAX_OBJECTS];
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;
static int control_fd = -1;
static uint32_t client = HANDLE_ROOT; /* numbers that were given are not given again */
static bool device_known[SIM_MAX_CARDS];

static struct object *find_object(uint32_t handle)
{
	for (int i = 0; i < MAX_OBJECTS; i++)
		if (objects[i].handle == handle)
			return &objects[i];
	return NULL;
}

static uint32_t do_alloc(const struct rm_alloc64 *a)
{
	struct object *o;
	uint32_t card = a->object - HANDLE_DEVICE;

	if (!a->object || find_object(a->object))
		return NV_INVALID_OBJECT_NEW;
	if (a->cls == CLASS_DEVICE) {
		const struct device_params *p = (const void *)(uintptr_t)a->params;

		if (!p || p->device_id >= SIM_MAX_CARDS || card != p->device_id)
			return NV_INVALID_ARGUMENT;
	} else if (a->cls == CLASS_GROUP) {
		o = find_object(a->parent);
		if (!o || o->cls != CLASS_DEVICE)
			return NV_INVALID_OBJECT_PARENT;
		if (a->object - HANDLE_GROUP >= MAX_OBJECTS)
			return NV_INVALID_ARGUMENT;
	} else if (a->cls != CLASS_ROOT) {
		return NV_INVALID_CLASS;
	}
	o = find_object(0);
	if (!o)
		return NV_INVALID_OBJECT_NEW;
	*o = (struct object){a->object, a->parent, a->cls};
	return NV_OK;
}

static uint32_t do_control(const struct rm_control *c)
{
	struct object *o = find_object(c->object);
	uint64_t *us = (uint64_t *)(uintptr_t)c->params;
	uint32_t ctx, group;
	uint64_t *aux;
	uint32_t status = NV_OK;

	if (c->client != client)
		return NV_INVALID_CLIENT;
	if (!o)
		return NV_INVALID_OBJECT_HANDLE;
	if (o->cls != CLASS_GROUP || (c->cmd != SET_TIMESLICE && c->cmd != GET_TIMESLICE))
		return NV_INVALID_COMMAND;
	if (!us || c->size != sizeof(*us))
		return NV_INVALID_PARAM_STRUCT;
	ctx = (o->handle - HANDLE_GROUP) / GROUPS;
	group = o->handle % GROUPS;
	aux = group ? &drv.st->ctx[ctx].aux_slice_us[group - 1] : NULL;
	sim_lock(drv.st);
	sim_advance_all(drv.st);
	if (c->cmd == GET_TIMESLICE)
		*us = aux ? *aux : drv.st->ctx[ctx].slice_us;
	else if (sim_slices_refused(drv.st))
		status = NV_INSUFFICIENT_PERMISSIONS;
	else if (!*us || *us > 10000000)
		status = NV_INVALID_ARGUMENT;
	else if (aux)
		*aux = *us;
	else
		sim_set_slice(drv.st, ctx, *us);
	sim_unlock(drv.st);
	return status;
}

static uint32_t do_free(const struct rm_free *f)
{
	struct object *o = f->object ? find_object(f->object) : NULL;

	if (!o)
		return NV_INVALID_OBJECT_HANDLE;
	memset(o, 0, sizeof(*o));
	return NV_OK;
}

int vgpu_rm_transport(int fd, unsigned long req, void *arg)
{
	if (_IOC_TYPE(req) != 'F' || !arg || !drv.st) {
		errno = ENOTTY;
		return -1;
	}
	pthread_mutex_lock(&objects_lock);
	if (fd < 0 || fd != control_fd) {
		pthread_mutex_unlock(&objects_lock);
		errno = EBADF;
		return -1;
	}
	switch (_IOC_NR(req)) {
	case ESC_ALLOC:
		if (_IOC_SIZE(req) == sizeof(struct rm_alloc64))
			((struct rm_alloc64 *)arg)->status = do_alloc(arg);
		break;
	case ESC_CONTROL:
		if (_IOC_SIZE(req) == sizeof(struct rm_control))
			((struct rm_control *)arg)->status = do_control(arg);
		break;
	case ESC_FREE:
		if (_IOC_SIZE(req) == sizeof(struct rm_free))
			((struct rm_free *)arg)->status = do_free(arg);
		break;
	}
	pthread_mutex_unlock(&objects_lock);
	return 0;
}

/* ioctl comes from outside this library on purpose: see the head of the file. */
static void rm_call(unsigned long req, void *arg)
{
	int saved = errno;

	pthread_mutex_lock(&objects_lock);
	if (control_fd < 0)
		control_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	pthread_mutex_unlock(&objects_lock);
	if (ioctl(control_fd, req, arg) < 0)
		vgpu_rm_transport(control_fd, req, arg);
	errno = saved;
}

static bool rm_alloc(uint32_t parent, uint32_t handle, uint32_t cls, void *params, uint32_t size)
{
	struct rm_alloc64 a = {client, parent, handle, cls,          (uintptr_t)params,
			       0,      size,   0,      NV_BAD_STATE, 0};

	rm_call(_IOWR('F', ESC_ALLOC, struct rm_alloc64), &a);
	return a.status == NV_OK;
}

/* drv.lock is given up: a preloaded library may call back in. */
void rm_announce(CUcontext ctx)
{
	uint32_t card = ctx->card;
	struct device_params p = {.device_id = card};
	bool first_card = true;

	for (int i = 0; i < SIM_MAX_CARDS; i++)
		first_card = first_card && !__atomic_load_n(&device_known[i], __ATOMIC_RELAXED);
	ctx->device_handle = HANDLE_DEVICE + card;
	pthread_mutex_unlock(&drv.lock);
	if (first_card)
		rm_alloc(0, client, CLASS_ROOT, NULL, 0);
	if (!__atomic_load_n(&device_known[card], __ATOMIC_RELAXED))
		rm_alloc(client, ctx->device_handle, CLASS_DEVICE, &p, sizeof(p));
	__atomic_store_n(&device_known[card], true, __ATOMIC_RELAXED);
	for (uint32_t g = 0; g < GROUPS; g++) {
		ctx->group_handle[g] = HANDLE_GROUP + (uint32_t)ctx->slot * GROUPS + g;
		rm_alloc(ctx->device_handle, ctx->group_handle[g], CLASS_GROUP, NULL, 0);
	}
	pthread_mutex_lock(&drv.lock);
}

/* What the real driver does when it schedules a group: slices that were set
 * between allocation and here are lost. */
void rm_usable(CUcontext ctx)
{
	struct sim_ctx *x = &drv.st->ctx[ctx->slot];

	sim_lock(drv.st);
	x->slice_us = drv.st->card[ctx->card].conf.slice_us;
	for (int g = 0; g < GROUPS - 1; g++)
		x->aux_slice_us[g] = 1024;
	x->usable = 1;
	sim_unlock(drv.st);
}

void rm_release(CUcontext ctx)
{
	pthread_mutex_unlock(&drv.lock);
	for (int g = 0; g < GROUPS; g++) {
		struct rm_free f = {client, ctx->device_handle, ctx->group_handle[g], NV_BAD_STATE};

		rm_call(_IOWR('F', ESC_FREE, struct rm_free), &f);
	}
	pthread_mutex_lock(&drv.lock);
}

/* With its descriptor all that a client has goes, and no call says so. */
void rm_close(void)
{
	pthread_mutex_lock(&objects_lock);
	if (control_fd >= 0)
		close(control_fd);
	control_fd = -1;
	client++;
	memset(objects, 0, sizeof(objects));
	for (int i = 0; i < SIM_MAX_CARDS; i++)
		__atomic_store_n(&device_known[i], false, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&objects_lock);
}
