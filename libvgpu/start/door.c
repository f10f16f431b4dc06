/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c - what a process asks of the kernel driver by ioctl, whatever API it speaks: OpenCL, Vulkan
 * and OpenGL have no other door. What libcuda asks has passed its hooks: of that only devices and
 * channel groups are learned. Everything else passes through unread.
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
#include "../driver/rm_call.h"
#include "../hooks/context.h"
#include "../job/devices.h"
#include "../job/job.h"
#include "../job/tell.h"
#include "../life/watcher.h"
#include "../memory/account.h"
#include "../memory/objects.h"
#include "../slices/rm.h"

/* A call, and the one that is in it. */
struct ask {
	int fd;
	unsigned long req;
	void *whole;
	unsigned nr;
	size_t size;
	uint64_t arg; /* the program's memory */
	bool hooked;  /* libcuda or NVML calls */
	bool charged; /* or a hook is in the middle of such a call */
	int error;    /* for errno, whatever is done beside the call */
};

int ioctl(int fd, unsigned long req, ...);

static bool no_job; /* as was found out */

/* As the first call of CUDA does. */
static void attach(void)
{
	VGPU_NO_CANCEL;

	vgpu_attach();
	__atomic_store_n(&no_job, !vgpu_state.grant, __ATOMIC_RELAXED);
}

static int pass(struct ask *q)
{
	int r = vgpu_rm_call(q->fd, q->req, q->whole);

	q->error = errno;
	return r;
}

/* ------------------------------------------------------- work on the card begins */
/* A card that is not known may be any. */
static void began(uint32_t client, uint32_t parent)
{
	int card = vgpu_card_below(client, parent);

	for (int i = 0; i < (int)vgpu_state.ncards; i++) {
		if ((card >= 0 && card != i) || !vgpu_others_begin(i))
			continue;
		vgpu_slot_flag(VGPU_SLOT_UNGATED, 0);
		vgpu_context_began(i);
		if (!vgpu_any_api()) /* whose submissions have a gate */
			vgpu_tell_ungated(i);
	}
}

static void made(const struct ask *q, const struct rm_alloc *a)
{
	switch (a->cls) {
	case CLASS_DEVICE:
		vgpu_device_made(q->fd, a->root, a->object, a->params, !q->hooked);
		break;
	case CLASS_SUBDEVICE:
		vgpu_subdevice_made(a->root, a->parent, a->object);
		break;
	case CLASS_CHANNEL_GROUP:
		if (!vgpu_rm_group_made(q->fd, a->root, a->parent, a->object) && !q->charged)
			began(a->root, a->parent);
		break;
	default: /* a channel in no group: its parent is the device */
		if (IS_CHANNEL(a->cls) && !q->charged && vgpu_device_of(a->root, a->parent))
			began(a->root, a->parent);
	}
}

/* ------------------------------------------------------------------------ memory */
/* A request for memory: the object, and the address of the status. */
struct form {
	struct vgpu_object object;
	uint64_t status_at; /* the program's memory */
	uint32_t status;
};

static uint32_t *status_of(const struct ask *q, struct rm_alloc *a)
{
	return q->size == ALLOC_V21_SIZE ? &a->v21.status : &a->v64.status;
}

/* True for memory of the card. False for memory of the system, and for addresses without memory.
 * made: the kernel driver has allocated it. */
static bool of_alloc(const struct ask *q, struct form *f, bool made)
{
	struct rm_memory_params p;
	struct rm_alloc a;

	if ((q->size != sizeof a && q->size != ALLOC_V21_SIZE) || !vgpu_peek(q->arg, &a, q->size) ||
	    a.cls != CLASS_LOCAL_USER ||
	    !vgpu_peek(a.params, &p, offsetof(struct rm_memory_params, rest)))
		return false;
	*f = (struct form){{a.root, a.parent, a.object, p.size, -1},
			   q->arg + (uint64_t)((char *)status_of(q, &a) - (char *)&a),
			   *status_of(q, &a)};
	return made || !(p.flags & FLAG_VIRTUAL);
}

static bool of_vid_heap(const struct ask *q, struct form *f, bool made)
{
	struct rm_vid_heap h;
	uint32_t attr;
	uint64_t size;

	if (q->size != sizeof h || !vgpu_peek(q->arg, &h, sizeof h))
		return false;
	switch (h.function) {
	case VID_HEAP_ALLOC_SIZE:
		attr = h.sized.attr;
		size = h.sized.size;
		break;
	case VID_HEAP_ALLOC_SIZE_RANGE:
		attr = h.range.attr;
		size = h.range.size;
		break;
	case VID_HEAP_ALLOC_TILED:
		attr = h.tiled.attr;
		size = made ? h.tiled.size : (uint64_t)h.tiled.height * (uint64_t)h.tiled.pitch;
		break;
	default:
		return false;
	}
	*f = (struct form){{h.root, h.parent, h.memory, size, -1},
			   q->arg + offsetof(struct rm_vid_heap, status),
			   h.status};
	return made || (!(h.flags & FLAG_VIRTUAL) && ATTR_LOCATION(attr) == LOCATION_VIDMEM);
}

static bool of_memory(const struct ask *q, struct form *f, bool made)
{
	return q->nr == RM_ALLOC ? of_alloc(q, f, made)
				 : q->nr == RM_VID_HEAP && of_vid_heap(q, f, made);
}

/* The request is charged before the kernel driver sees it. Its answer corrects the charge. */
static int take_memory(struct ask *q, struct form *f)
{
	static const uint32_t no_memory = STATUS_NO_MEMORY;
	struct form after;
	bool made;
	int r;

	if (vgpu_object_take(&f->object)) {
		if (vgpu_poke(f->status_at, &no_memory, sizeof no_memory))
			return 0;
		q->error = ENOMEM;
		return -1;
	}
	r = pass(q);
	made = r == 0 && of_memory(q, &after, true) && after.status == 0;
	vgpu_object_taken(&f->object, made ? &after.object : NULL);
	vgpu_watcher_start();
	return r;
}

/* ---------------------------------------------------------------------- the calls */
static int alloc(struct ask *q)
{
	struct rm_alloc a;
	int r;

	if (q->size != sizeof a && q->size != ALLOC_V21_SIZE)
		return pass(q);
	/* Work on a card begins with one of these. */
	if (!q->hooked && vgpu_peek(q->arg, &a, q->size) &&
	    (a.cls == CLASS_DEVICE || a.cls == CLASS_CHANNEL_GROUP || IS_CHANNEL(a.cls)))
		attach();
	r = pass(q);
	if (r == 0 && vgpu_state.grant && vgpu_peek(q->arg, &a, q->size) && !*status_of(q, &a))
		made(q, &a);
	return r;
}

static int free_object(struct ask *q)
{
	struct vgpu_item *list;
	struct rm_free f;
	bool ok;
	int r;

	if (!vgpu_state.grant || q->size != sizeof f || !vgpu_peek(q->arg, &f, sizeof f))
		return pass(q);
	list = vgpu_object_freeing(f.root, f.object);
	r = pass(q);
	ok = r == 0 && vgpu_peek(q->arg, &f, sizeof f) && f.status == 0;
	if (ok) {
		vgpu_rm_freed(f.root, f.object);
		if (vgpu_device_freed(f.root, f.object))
			vgpu_objects_below_freed(f.root, f.object);
	}
	vgpu_object_freed(list, ok);
	return r;
}

static void told(const struct rm_vid_heap *h, uint32_t index, uint64_t *bytes)
{
	*bytes = (uint64_t)vgpu_object_told(h->root, h->parent, index, (uint32_t)(*bytes >> 10))
		 << 10;
}

static int free_or_info(struct ask *q)
{
	struct vgpu_item *list;
	struct rm_vid_heap h;
	bool frees, ok;
	int r;

	if (!vgpu_state.grant || !vgpu_peek(q->arg, &h, sizeof h) ||
	    (h.function != VID_HEAP_FREE && h.function != VID_HEAP_INFO))
		return pass(q);
	frees = h.function == VID_HEAP_FREE;
	list = frees ? vgpu_object_freeing(h.root, h.memory) : NULL;
	r = pass(q);
	ok = r == 0 && vgpu_peek(q->arg, &h, sizeof h) && h.status == 0;
	if (frees) {
		vgpu_object_freed(list, ok);
	} else if (ok) {
		told(&h, FB_HEAP_SIZE, &h.total);
		told(&h, FB_HEAP_FREE, &h.free);
		told(&h, FB_LARGEST_FREE, &h.info.size);
		vgpu_poke(q->arg, &h, sizeof h);
	}
	return r;
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

static int export_dmabuf(struct ask *q)
{
	uint64_t names = q->arg + sizeof(struct rm_dmabuf) + (q->size == DMABUF_SIZE ? 4 : 0);
	uint32_t object[DMABUF_MOST], status;
	struct rm_dmabuf d;
	int r = pass(q);

	if (r == 0 && vgpu_state.grant && (q->size == DMABUF_SIZE || q->size == DMABUF_OLD_SIZE) &&
	    vgpu_peek(q->arg + q->size - 8, &status, sizeof status) && status == 0 &&
	    vgpu_peek(q->arg, &d, sizeof d) && d.n <= DMABUF_MOST &&
	    vgpu_peek(names, object, d.n * sizeof *object))
		vgpu_objects_exported(d.client, object, d.n, d.fd);
	return r;
}

static int control_call(struct ask *q)
{
	struct rm_control c;
	struct rm_fb_info info;
	struct rm_export_all all;
	struct rm_export e;
	int r = pass(q);

	if (r || !vgpu_state.grant || q->size != sizeof c || !vgpu_peek(q->arg, &c, sizeof c) ||
	    c.status)
		return r;
	if (c.cmd == CMD_FB_INFO && vgpu_peek(c.params, &info, sizeof info))
		tell_memory(&c, info.list, info.n);
	else if (c.cmd == CMD_FB_INFO_V2 && vgpu_peek(c.params, &info.n, sizeof info.n))
		tell_memory(&c, c.params + offsetof(struct rm_fb_info_v2, entry), info.n);
	else if (c.cmd == CMD_EXPORT_TO_FD && vgpu_peek(c.params, &e, sizeof e) &&
		 e.type == EXPORT_OBJECT && !(e.flags & EXPORT_EMPTY_FD))
		vgpu_objects_exported(c.client, &e.object, 1, e.fd);
	else if (c.cmd == CMD_EXPORT_ALL_TO_FD && vgpu_peek(c.params, &all, sizeof all) &&
		 all.n <= EXPORT_MOST)
		vgpu_objects_exported(c.client, all.object, all.n, all.fd);
	return r;
}

static __attribute__((noinline)) int rm_ioctl(struct ask *q)
{
	struct rm_xfer x;
	struct form f;

	if (__atomic_load_n(&no_job, __ATOMIC_RELAXED) && !vgpu_state.grant)
		return pass(q);
	if (q->nr == RM_XFER && q->size == sizeof x && vgpu_peek(q->arg, &x, sizeof x)) {
		q->nr = x.nr;
		q->size = x.size;
		q->arg = x.arg;
	}
	if (!q->charged && of_memory(q, &f, false)) {
		attach();
		if (vgpu_state.grant)
			return take_memory(q, &f);
	}
	return q->nr == RM_ALLOC                                               ? alloc(q)
	       : q->nr == RM_FREE                                              ? free_object(q)
	       : q->hooked                                                     ? pass(q)
	       : q->nr == RM_CONTROL                                           ? control_call(q)
	       : q->nr == RM_DMABUF                                            ? export_dmabuf(q)
	       : q->nr == RM_VID_HEAP && q->size == sizeof(struct rm_vid_heap) ? free_or_info(q)
									       : pass(q);
}

VGPU_EXPORT int ioctl(int fd, unsigned long req, ...)
{
	struct ask ask;
	va_list ap;
	bool hooked;
	void *arg;
	int r;

	va_start(ap, req);
	arg = va_arg(ap, void *);
	va_end(ap);
	vgpu_need_ioctl();
	if (unlikely(!vgpu_real_ioctl))
		return (int)syscall(SYS_ioctl, fd, req, arg);
	if (likely(_IOC_TYPE(req) != RM_TYPE))
		return vgpu_real_ioctl(fd, req, arg);
	hooked = vgpu_is_of_driver(__builtin_return_address(0));
	/* The caller may be another ioctl, of a sanitizer's runtime or of a preload of the user's. A
	 * call of libcuda is then known by the hook that waits for it, which has charged it. */
	ask = (struct ask){.fd = fd,
			   .req = req,
			   .whole = arg,
			   .nr = _IOC_NR(req),
			   .size = _IOC_SIZE(req),
			   .arg = (uint64_t)(uintptr_t)arg,
			   .hooked = hooked,
			   .charged = hooked || vgpu_mem_busy() || vgpu_rm_creates(),
			   .error = errno};
	r = rm_ioctl(&ask);
	errno = ask.error;
	return r;
}
