/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ioctl.c - see kernel.h. OpenCL, Vulkan and OpenGL have no other way to the card. Calls of libcuda have
 * passed its hooks: this file reads only their devices and channel groups. It reads no other call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../driver/load.h"
#include "../driver/others.h"
#include "../job/job.h"
#include "../job/tell.h"
#include "../memory/account.h"
#include "kernel.h"

/* A call. An RM_XFER contains another call; nr, size and arg are then of the inner call. */
struct ask {
	int fd;
	unsigned long req;
	void *whole;
	unsigned nr;
	size_t size;
	uint64_t arg; /* the program's memory */
	/* A copy of that memory. After the call it has the answer. */
	union {
		struct rm_alloc alloc;
		struct rm_free free;
		struct rm_vid_heap heap;
		struct rm_control control;
		struct rm_dmabuf dmabuf;
		char bytes[DMABUF_SIZE];
	} p;
	size_t status; /* its place in the copy */
	bool hooked;   /* libcuda or NVML calls */
	bool charged;  /* or a hook is in the middle of such a call */
	int result;
	int error; /* errno after the call */
};

int ioctl(int fd, unsigned long req, ...);

static bool no_job; /* this process belongs to no job */

/* Joins the job, as the first call of CUDA does. */
static void attach(void)
{
	VGPU_NO_CANCEL;

	vgpu_attach();
	STORE(&no_job, !vgpu_state.grant);
}

/* Calls the kernel driver. True: the call has succeeded. */
static bool pass(struct ask *q)
{
	uint32_t status;

	q->result = vgpu_rm_call(q->fd, q->req, q->whole);
	q->error = errno;
	if (q->result || !vgpu_state.grant || !vgpu_peek(q->arg, &q->p, q->size))
		return false;
	memcpy(&status, q->p.bytes + q->status, sizeof status);
	return status == 0;
}

/* ------------------------------------------------------- work on the card begins */
/* A card that is not known may be any. */
static void began(uint32_t client, uint32_t parent)
{
	int card = vgpu_card_below(client, parent);

	for (int i = 0; i < (int)vgpu_state.ncards; i++) {
		uint32_t bit = 1u << i;

		if ((card >= 0 && card != i) ||
		    __atomic_fetch_or(&vgpu_state.other_cards, bit, __ATOMIC_SEQ_CST) & bit)
			continue;
		vgpu_slot_flag(VGPU_SLOT_UNGATED, 0);
		vgpu_context_began(i);
		if (!vgpu_any_api()) /* whose submissions have a gate */
			vgpu_tell_ungated(i);
	}
}

/* ------------------------------------------------------------------------ memory */
/* True for memory of the card. False for memory of the system, and for addresses without memory.
 * made: the kernel driver has allocated it. */
static bool of_alloc(const struct rm_alloc *a, struct vgpu_object *o, bool made)
{
	struct rm_memory_params p;

	if (a->cls != CLASS_LOCAL_USER ||
	    !vgpu_peek(a->params, &p, offsetof(struct rm_memory_params, rest)))
		return false;
	*o = (struct vgpu_object){a->root, a->parent, a->object, p.size, -1};
	return made || !(p.flags & FLAG_VIRTUAL);
}

static bool of_vid_heap(const struct rm_vid_heap *h, struct vgpu_object *o, bool made)
{
	uint32_t attr = h->sized.attr;
	uint64_t size = h->sized.size;

	if (h->function == VID_HEAP_ALLOC_SIZE_RANGE) {
		size = h->range.size;
	} else if (h->function == VID_HEAP_ALLOC_TILED) {
		attr = h->tiled.attr;
		size = made ? h->tiled.size : (uint64_t)h->tiled.height * (uint64_t)h->tiled.pitch;
	} else if (h->function != VID_HEAP_ALLOC_SIZE) {
		return false;
	}
	*o = (struct vgpu_object){h->root, h->parent, h->memory, size, -1};
	return made || (!(h->flags & FLAG_VIRTUAL) && ATTR_LOCATION(attr) == LOCATION_VIDMEM);
}

static bool of_memory(const struct ask *q, struct vgpu_object *o, bool made)
{
	return q->nr == RM_ALLOC ? of_alloc(&q->p.alloc, o, made)
				 : q->nr == RM_VID_HEAP && of_vid_heap(&q->p.heap, o, made);
}

/* The request is charged before the kernel driver sees it. Its answer corrects the charge. */
static void take_memory(struct ask *q, struct vgpu_object *asked)
{
	static const uint32_t no_memory = STATUS_NO_MEMORY;
	struct vgpu_object made;

	if (vgpu_object_take(asked)) {
		if (vgpu_poke(q->arg + q->status, &no_memory, sizeof no_memory))
			return;
		q->error = ENOMEM;
		q->result = -1;
		return;
	}
	vgpu_object_taken(asked, pass(q) && of_memory(q, &made, true) ? &made : NULL);
	vgpu_watcher_start();
}

/* ---------------------------------------------------------------------- the calls */
static void alloc(struct ask *q)
{
	const struct rm_alloc *a = &q->p.alloc;

	/* Work on a card begins with one of these. */
	if (!q->hooked &&
	    (a->cls == CLASS_DEVICE || a->cls == CLASS_CHANNEL_GROUP || IS_CHANNEL(a->cls)))
		attach();
	if (!pass(q))
		return;
	if (a->cls == CLASS_DEVICE)
		vgpu_device_made(q->fd, a->root, a->object, a->params, !q->hooked);
	else if (a->cls == CLASS_SUBDEVICE)
		vgpu_subdevice_made(a->root, a->parent, a->object);
	else if (a->cls == CLASS_CHANNEL_GROUP
			 ? !vgpu_rm_group_made(q->fd, a->root, a->parent, a->object) && !q->charged
			 /* a channel in no group: its parent is the device */
			 : IS_CHANNEL(a->cls) && !q->charged && vgpu_device_of(a->root, a->parent))
		began(a->root, a->parent);
}

static void free_object(struct ask *q)
{
	struct rm_free f = q->p.free;
	struct vgpu_item *list = vgpu_object_freeing(f.root, f.object);
	bool ok = pass(q);

	if (ok) {
		vgpu_rm_freed(f.root, f.object);
		if (vgpu_device_freed(f.root, f.object))
			vgpu_objects_below_freed(f.root, f.object);
	}
	vgpu_object_freed(list, ok);
}

static void told(const struct rm_vid_heap *h, uint32_t index, uint64_t *bytes)
{
	*bytes = (uint64_t)vgpu_object_told(h->root, h->parent, index, (uint32_t)(*bytes >> 10))
		 << 10;
}

static void free_or_info(struct ask *q)
{
	struct rm_vid_heap *h = &q->p.heap;

	if (h->function == VID_HEAP_FREE) {
		struct vgpu_item *list = vgpu_object_freeing(h->root, h->memory);

		vgpu_object_freed(list, pass(q));
	} else if (pass(q) && h->function == VID_HEAP_INFO) {
		told(h, FB_HEAP_SIZE, &h->total);
		told(h, FB_HEAP_FREE, &h->free);
		told(h, FB_LARGEST_FREE, &h->info.size);
		vgpu_poke(q->arg, h, sizeof *h);
	}
}

static void tell_memory(const struct rm_control *c, uint64_t list, uint32_t n)
{
	struct rm_fb_entry entry[FB_INFO_MAX];

	if (n > FB_INFO_MAX || !vgpu_peek(list, entry, n * sizeof *entry))
		return;
	for (uint32_t i = 0; i < n; i++)
		entry[i].kib = vgpu_object_told(c->client, c->object, entry[i].index, entry[i].kib);
	vgpu_poke(list, entry, n * sizeof *entry);
}

static void export_dmabuf(struct ask *q)
{
	const struct rm_dmabuf *d = &q->p.dmabuf;
	size_t names = sizeof *d + (q->size == DMABUF_SIZE ? 4 : 0);
	uint32_t object[DMABUF_MOST];

	if (!pass(q) || d->n > DMABUF_MOST)
		return;
	memcpy(object, q->p.bytes + names, d->n * sizeof *object);
	vgpu_objects_exported(d->client, object, d->n, d->fd);
}

static void control_call(struct ask *q)
{
	const struct rm_control *c = &q->p.control;
	struct rm_fb_info info;
	struct rm_export_all all;
	struct rm_export e;

	if (!pass(q))
		return;
	if (c->cmd == CMD_FB_INFO && vgpu_peek(c->params, &info, sizeof info))
		tell_memory(c, info.list, info.n);
	else if (c->cmd == CMD_FB_INFO_V2 && vgpu_peek(c->params, &info.n, sizeof info.n))
		tell_memory(c, c->params + offsetof(struct rm_fb_info_v2, entry), info.n);
	else if (c->cmd == CMD_EXPORT_TO_FD && vgpu_peek(c->params, &e, sizeof e) &&
		 e.type == EXPORT_OBJECT && !(e.flags & EXPORT_EMPTY_FD))
		vgpu_objects_exported(c->client, &e.object, 1, e.fd);
	else if (c->cmd == CMD_EXPORT_ALL_TO_FD && vgpu_peek(c->params, &all, sizeof all) &&
		 all.n <= EXPORT_MOST)
		vgpu_objects_exported(c->client, all.object, all.n, all.fd);
}

static const struct call {
	unsigned nr;
	size_t size, status;
	bool of_all; /* libcuda's calls are read, too */
	void (*handle)(struct ask *q);
} calls[] = {
	{RM_ALLOC, sizeof(struct rm_alloc), offsetof(struct rm_alloc, v64.status), true, alloc},
	{RM_ALLOC, ALLOC_V21_SIZE, offsetof(struct rm_alloc, v21.status), true, alloc},
	{RM_FREE, sizeof(struct rm_free), offsetof(struct rm_free, status), true, free_object},
	{RM_VID_HEAP, sizeof(struct rm_vid_heap), offsetof(struct rm_vid_heap, status), false,
	 free_or_info},
	{RM_CONTROL, sizeof(struct rm_control), offsetof(struct rm_control, status), false,
	 control_call},
	{RM_DMABUF, DMABUF_SIZE, DMABUF_SIZE - 8, false, export_dmabuf},
	{RM_DMABUF, DMABUF_OLD_SIZE, DMABUF_OLD_SIZE - 8, false, export_dmabuf},
};

/* Returns NULL for a call that this file does not read. */
static const struct call *call_of(const struct ask *q)
{
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		if (calls[i].nr == q->nr && calls[i].size == q->size &&
		    (calls[i].of_all || !q->hooked))
			return &calls[i];
	return NULL;
}

static void handle(struct ask *q, const struct call *call)
{
	struct vgpu_object asked;

	q->status = call->status;
	if (!q->charged && of_memory(q, &asked, false)) {
		attach();
		if (vgpu_state.grant) {
			take_memory(q, &asked);
			return;
		}
	}
	if (vgpu_state.grant || q->nr == RM_ALLOC)
		call->handle(q);
	else
		pass(q);
}

static __attribute__((noinline)) int rm_ioctl(int fd, unsigned long req, void *arg, bool hooked)
{
	struct ask q;
	const struct call *call;
	struct rm_xfer x;

	if (LOAD(&no_job) && !vgpu_state.grant)
		return vgpu_rm_call(fd, req, arg);
	q.fd = fd;
	q.req = req;
	q.whole = arg;
	q.nr = _IOC_NR(req);
	q.size = _IOC_SIZE(req);
	q.arg = (uint64_t)(uintptr_t)arg;
	q.hooked = hooked;
	/* The caller may be another ioctl, of a sanitizer's runtime or of a preload of the user's. A
	 * call of libcuda is then known by the hook that waits for it, which has charged it. */
	q.charged = hooked || vgpu_mem_busy() || vgpu_rm_creates();
	q.result = 0;
	q.error = errno;
	if (q.nr == RM_XFER && q.size == sizeof x && vgpu_peek(q.arg, &x, sizeof x)) {
		q.nr = x.nr;
		q.size = x.size;
		q.arg = x.arg;
	}
	call = call_of(&q);
	if (!call || !vgpu_peek(q.arg, &q.p, q.size))
		return vgpu_rm_call(fd, req, arg);
	handle(&q, call);
	errno = q.error;
	return q.result;
}

VGPU_EXPORT int ioctl(int fd, unsigned long req, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, req);
	arg = va_arg(ap, void *);
	va_end(ap);
	vgpu_need_ioctl();
	if (unlikely(!vgpu_real_ioctl))
		return (int)syscall(SYS_ioctl, fd, req, arg);
	if (likely(_IOC_TYPE(req) != RM_TYPE))
		return vgpu_real_ioctl(fd, req, arg);
	return rm_ioctl(fd, req, arg, vgpu_is_of_driver(__builtin_return_address(0)));
}
