/* SPDX-License-Identifier: Apache-2.0 */
/* door.h - the library's door and a kernel driver behind it, for door_test.c: a function that answers
 * as the real one (kernel/rm_abi.h). */
#ifndef DOOR_H
#define DOOR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/wait.h>

#include "../../libvgpu/kernel/call.c"
#include "../../libvgpu/kernel/devices.c"
#include "../../libvgpu/kernel/groups.c"
#include "../../libvgpu/kernel/ioctl.c"
#include "../../libvgpu/kernel/objects.c"
#include "../../libvgpu/memory/account.c"
#include "../../libvgpu/memory/shared.c"

#include "cache.h"
#include "room.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define CLIENT 0xc1d00001u
#define DEVICE 0x5c000001u
#define SUBDEVICE 0x5c000002u
#define FD 7
#define RM_ALLOC_MEMORY 0x27
#define HOPPER_CHANNEL 0xC86F

struct rm_alloc_memory { /* NVOS02, with a descriptor */
	uint32_t root, parent, object, cls, flags, pad;
	uint64_t address, limit; /* the last byte */
	uint32_t status, pad2;
	int32_t fd;
	uint32_t pad3;
};

struct vgpu_state vgpu_state;
struct vgpu_real vgpu_real;
int (*vgpu_transport)(int fd, unsigned long req, void *arg);
void *(*vgpu_real_dlsym)(void *handle, const char *name);

static bool by_libcuda;
static unsigned attached, watchers, begun[2], refusals, ungated, walks;
static struct {
	unsigned calls;
	uint32_t status; /* of what is asked for next */
	uint32_t given;  /* handle, where none is proposed */
	uint64_t rounded;
} driver;

/* ------------------------------------------------------- what is not looked at here */
void vgpu_need_dlsym(void)
{
	walks++;
}

void vgpu_need_cuda(void)
{
}

void vgpu_attach(void)
{
	__atomic_add_fetch(&attached, 1, __ATOMIC_RELAXED);
}

bool vgpu_is_of_driver(const void *address)
{
	CHECK(address != NULL);
	return by_libcuda;
}

void vgpu_context_began(int card)
{
	begun[card]++;
}

void vgpu_watcher_start(void)
{
	__atomic_add_fetch(&watchers, 1, __ATOMIC_RELAXED);
}

void vgpu_tell_oom(int card, uint64_t bytes)
{
	CHECK(card >= 0 && bytes > 0);
	__atomic_add_fetch(&refusals, 1, __ATOMIC_RELAXED);
}

static bool any_api;
bool vgpu_any_api(void)
{
	return any_api;
}

void vgpu_tell_ungated(int card)
{
	CHECK(card >= 0);
	ungated++;
}

/* ------------------------------------------------------------- the kernel driver */
static uint64_t rounded(uint64_t size)
{
	return (size + driver.rounded - 1) / driver.rounded * driver.rounded;
}

static void answer_alloc(struct rm_alloc *a, bool old)
{
	struct rm_memory_params *p = (void *)(uintptr_t)a->params;

	if (!a->object)
		a->object = driver.given;
	if (a->cls == CLASS_LOCAL_USER)
		p->size = rounded(p->size);
	*(old ? &a->v21.status : &a->v64.status) = driver.status;
}

static void answer_heap(struct rm_vid_heap *h)
{
	if (h->function == VID_HEAP_INFO)
		h->total = h->free = h->info.size = 80 * GIB;
	if (!h->memory)
		h->memory = driver.given;
	if (h->function == VID_HEAP_ALLOC_SIZE_RANGE)
		h->range.size = rounded(h->range.size);
	else if (h->function == VID_HEAP_ALLOC_TILED)
		h->tiled.size = rounded((uint64_t)h->tiled.height * (uint64_t)h->tiled.pitch);
	else if (h->function == VID_HEAP_ALLOC_SIZE)
		h->sized.size = rounded(h->sized.size);
	h->status = driver.status;
}

static void answer_control(struct rm_control *c)
{
	void *params = (void *)(uintptr_t)c->params;

	c->status = driver.status;
	if (c->cmd == CMD_UUID_INFO) {
		/* Card 1 is device 5, card 0 is device 3; that is not their order. An instance
		 * of MIG is none. */
		struct rm_uuid_info *info = params;

		CHECK_EQ(info->flags, 0);
		CHECK_EQ(c->object, c->client);
		info->device = info->uuid[strlen(info->uuid) - 1] == '1' ? 5 : 3;
		c->status = strncmp(info->uuid, "GPU-ab", 6) == 0 ? driver.status
								  : STATUS_OBJECT_NOT_FOUND;
	} else if (c->cmd == CMD_FB_INFO_V2 || c->cmd == CMD_FB_INFO) {
		struct rm_fb_info *old = params;
		struct rm_fb_info_v2 *v2 = params;
		struct rm_fb_entry *e =
			c->cmd == CMD_FB_INFO ? (void *)(uintptr_t)old->list : v2->entry;

		for (uint32_t i = 0; i < old->n; i++)
			e[i].kib = 80u << 20;
	}
}

static int answer(int fd, unsigned long req, void *arg)
{
	struct rm_xfer *x = arg;
	unsigned nr = _IOC_NR(req);
	size_t size = _IOC_SIZE(req);

	CHECK_EQ(fd, FD);
	__atomic_add_fetch(&driver.calls, 1, __ATOMIC_RELAXED);
	if (nr == RM_XFER) {
		nr = x->nr;
		size = x->size;
		arg = (void *)(uintptr_t)x->arg;
	}
	switch (nr) {
	case RM_ALLOC:
		answer_alloc(arg, size == ALLOC_V21_SIZE);
		break;
	case RM_FREE:
		((struct rm_free *)arg)->status = driver.status;
		break;
	case RM_CONTROL:
		answer_control(arg);
		break;
	case RM_ALLOC_MEMORY:
		((struct rm_alloc_memory *)arg)->limit = 80 * GIB - 1;
		((struct rm_alloc_memory *)arg)->status = driver.status;
		break;
	case RM_VID_HEAP:
		answer_heap(arg);
		break;
	case RM_DMABUF:
		*(uint32_t *)((char *)arg + size - 8) = driver.status;
		break;
	}
	return 0;
}

static int others_ioctl(int fd, unsigned long req, ...)
{
	(void)fd;
	(void)req;
	errno = ENOTTY;
	return -1;
}

/* ------------------------------------------------------------------ what is asked */
static uint32_t alloc_below(uint32_t client, uint32_t parent, uint32_t object, uint32_t cls,
			    void *params)
{
	struct rm_alloc a = {.root = client,
			     .parent = parent,
			     .object = object,
			     .cls = cls,
			     .params = (uintptr_t)params,
			     .v64.status = 0xffff};

	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_ALLOC, struct rm_alloc), &a), 0);
	return a.v64.status;
}

static uint32_t take_below(uint32_t client, uint32_t parent, uint32_t object, uint64_t bytes)
{
	struct rm_memory_params p = {.size = bytes};

	return alloc_below(client, parent, object, CLASS_LOCAL_USER, &p);
}

static uint32_t take_object(uint32_t object, uint64_t bytes)
{
	return take_below(CLIENT, DEVICE, object, bytes);
}

static uint32_t free_named(uint32_t client, uint32_t object)
{
	struct rm_free f = {.root = client, .object = object, .status = 0xffff};

	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_FREE, struct rm_free), &f), 0);
	return f.status;
}

static struct rm_vid_heap heap_of(uint32_t object, uint64_t bytes)
{
	return (struct rm_vid_heap){.root = CLIENT,
				    .parent = DEVICE,
				    .function = VID_HEAP_ALLOC_SIZE,
				    .memory = object,
				    .sized.size = bytes,
				    .status = 0xffff};
}

static uint32_t ask_heap(struct rm_vid_heap *h)
{
	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_VID_HEAP, struct rm_vid_heap), h), 0);
	return h->status;
}

static uint32_t control_of(uint32_t object, uint32_t cmd, void *params)
{
	struct rm_control c = {.client = CLIENT,
			       .object = object,
			       .cmd = cmd,
			       .params = (uintptr_t)params};

	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_CONTROL, struct rm_control), &c), 0);
	return c.status;
}

static void used(uint64_t bytes)
{
	CHECK_EQ(vgpu_mem_used(0), bytes);
	CHECK_EQ(vgpu_state.slot->mem_begun, vgpu_state.slot->mem_done);
}

static void devices_of(uint32_t client)
{
	uint32_t number[2] = {3, 5};

	CHECK_EQ(alloc_below(client, client, DEVICE, CLASS_DEVICE, &number[0]), 0);
	CHECK_EQ(alloc_below(client, DEVICE, SUBDEVICE, CLASS_SUBDEVICE, NULL), 0);
	CHECK_EQ(alloc_below(client, client, DEVICE + 10, CLASS_DEVICE, &number[1]), 0);
}

static bool any(const struct vgpu_item *item, uint64_t unused)
{
	(void)item;
	(void)unused;
	return true;
}

static void fresh(unsigned ncards)
{
	vgpu_table_sweep(&objects, 0, any);
	vgpu_table_sweep(&devices, 0, any);
	memset(card_of_number, 0, sizeof card_of_number);
	ngroups = 0;
	vgpu_shared_in_child();
	vgpu_state.other_cards = 0;
	vgpu_state.cache = new_cache();
	vgpu_state.slot = claim(&vgpu_state.cache);
	vgpu_state.counted = true;
	vgpu_state.ncards = ncards;
	memset(begun, 0, sizeof begun);
	attached = refusals = watchers = ungated = 0;
	memset(&driver, 0, sizeof driver);
	driver.rounded = 2 * MIB;
	by_libcuda = false;
	devices_of(CLIENT);
}

/* Of two cards. */
static void set_up(void)
{
	grant.ncards = 2;
	strcpy(grant.card[0].uuid, "GPU-ab000000-0000-0000-0000-000000000000");
	strcpy(grant.card[1].uuid, "GPU-ab000000-0000-0000-0000-000000000001");
	grant.card[0].mem_limit = 8 * GIB;
	grant.card[1].mem_limit = 4 * GIB;
	vgpu_state.grant = &grant;
	vgpu_real_ioctl = others_ioctl;
	vgpu_transport = answer;
}

#endif
