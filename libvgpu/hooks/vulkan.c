/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan.c - work that Vulkan puts on a card passes the gate of the hard limit. The mark of a
 * submission is a fence of ours. If the program gives a fence, an empty submission behind ours signals
 * it, so that the mark is there when the program has waited for its own. Only the thread that
 * submits may submit: nobody else may use the queue meanwhile.
 */
#include <stdlib.h>

#include "../base/table.h"
#include "../compute/queues.h"
#include "../driver/others.h"

#define SPARE 64

typedef VkResult (*submit_call)(VkQueue, uint32_t, const void *, VkFence);
static const char *const calls[] = {"vkQueueSubmit", "vkQueueSubmit2", "vkQueueSubmit2KHR"};

struct device {
	VkDevice handle;
	/* What the driver, or a layer before it, has for the device. */
	submit_call submit[3];
	/* Fences that no submission has: the first submission of a new one takes long. */
	pthread_mutex_t lock;
	VkFence spare[SPARE];
	unsigned spares;
};

/* Devices and queues by their handles. The owner of a queue's entry is its device's handle. */
static VGPU_TABLE(known);

static uint64_t key_of(const void *handle)
{
	return (uintptr_t)handle;
}

static struct device *device_of(const void *handle)
{
	struct vgpu_item item;

	if (!vgpu_table_get(&known, key_of(handle), &item))
		return NULL;
	return (struct device *)(uintptr_t)item.other;
}

static struct device *make(VkDevice handle)
{
	struct device *d = calloc(1, sizeof *d);
	struct vgpu_item item = {.key = key_of(handle), .other = (uintptr_t)d, .card = -1};

	if (!d)
		return NULL;
	d->handle = handle;
	pthread_mutex_init(&d->lock, NULL);
	for (unsigned i = 0; i < 3; i++)
		d->submit[i] = (submit_call)vgpu_others.vkGetDeviceProcAddr(handle, calls[i]);
	if (vgpu_table_add(&known, &item) && item.other == (uintptr_t)d)
		return d;
	free(d); /* another thread was faster, or there is no memory */
	return device_of(handle);
}

/* Also before it is known whether the program is of a job. */
static void note(VkDevice handle, VkQueue queue)
{
	struct vgpu_item item = {.key = key_of(queue), .owner = key_of(handle), .card = -1};
	struct device *d;

	if (!queue || !vgpu_others.vkGetDeviceProcAddr || !vgpu_others.vkCreateFence ||
	    !vgpu_others.vkResetFences || !vgpu_others.vkGetFenceStatus ||
	    !vgpu_others.vkDestroyFence)
		return;
	d = device_of(handle);
	if (!d)
		d = make(handle);
	item.other = (uintptr_t)d;
	if (d)
		vgpu_table_add(&known, &item);
}

void vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue)
{
	VGPU_NEED_API(vkGetDeviceQueue, );
	vgpu_others.vkGetDeviceQueue(device, family, index, queue);
	note(device, *queue);
}

void vkGetDeviceQueue2(VkDevice device, const void *info, VkQueue *queue)
{
	VGPU_NEED_API(vkGetDeviceQueue2, );
	vgpu_others.vkGetDeviceQueue2(device, info, queue);
	note(device, *queue);
}

static bool goes(const struct vgpu_item *item, uint64_t owner)
{
	return item->owner == owner;
}

void vkDestroyDevice(VkDevice device, const void *allocator)
{
	struct vgpu_item item;

	VGPU_NEED_API(vkDestroyDevice, );
	if (device && vgpu_table_take(&known, key_of(device), &item)) {
		struct device *d = (struct device *)(uintptr_t)item.other;

		vgpu_table_sweep(&known, key_of(device), goes);
		vgpu_marks_forget(d);
		while (d->spares)
			vgpu_others.vkDestroyFence(device, d->spare[--d->spares], NULL);
		free(d);
	}
	vgpu_others.vkDestroyDevice(device, allocator);
}

/* --------------------------------------------------------------------------- marks */
static bool ended(const struct vgpu_mark *m)
{
	const struct device *d = m->device;

	return vgpu_others.vkGetFenceStatus(d->handle, m->handle) != VK_NOT_READY;
}

/* 0: there is none. */
static VkFence take_fence(struct device *d)
{
	static const VkFenceCreateInfo info = {.type = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	VkFence fence = 0;
	VGPU_LOCK(&d->lock);

	if (d->spares)
		return d->spare[--d->spares];
	return vgpu_others.vkCreateFence(d->handle, &info, NULL, &fence) == VK_SUCCESS ? fence : 0;
}

static void drop(const struct vgpu_mark *m)
{
	struct device *d = m->device;
	VkFence fence = m->handle;
	VGPU_LOCK(&d->lock);

	if (d->spares < SPARE && vgpu_others.vkResetFences(d->handle, 1, &fence) == VK_SUCCESS)
		d->spare[d->spares++] = fence;
	else
		vgpu_others.vkDestroyFence(d->handle, fence, NULL);
}

static const struct vgpu_mark_kind kind = {.ended = ended, .drop = drop};

/* ------------------------------------------------------------------------ submissions */
/* It has command buffers. Without, it only waits and signals: it takes nothing of the card, and others
 * may wait for it. */
static bool works(unsigned call, uint32_t n, const void *submits)
{
	const VkSubmitInfo *first = submits;
	const VkSubmitInfo2 *second = submits;

	for (uint32_t i = 0; i < n; i++)
		if (call == 0 ? first[i].buffers : second[i].buffers)
			return true;
	return false;
}

/* real: of a queue that is not known. */
static VkResult submit(unsigned call, submit_call *real, VkQueue queue, uint32_t n,
		       const void *submits, VkFence fence)
{
	struct device *d = device_of(queue);
	struct vgpu_mark mark = {.kind = &kind, .queue = queue, .device = d};
	submit_call go = d && d->submit[call] ? d->submit[call] : LOAD(real);
	struct vgpu_submission s;
	uint32_t cards = 0;
	VkResult r;
	bool there;

	if (!go)
		return VK_ERROR_INITIALIZATION_FAILED;
	if (d && d->submit[0] && works(call, n, submits))
		cards = vgpu_queues_gated(vgpu_queues_cards());
	if (!cards)
		return go(queue, n, submits, fence);
	mark.handle = take_fence(d);
	vgpu_queue_wait(cards);
	vgpu_queue_begin(&s, cards);
	r = go(queue, n, submits, mark.handle ? mark.handle : fence);
	there = r == VK_SUCCESS && mark.handle;
	if (there && fence)
		r = d->submit[0](queue, 0, NULL, fence);
	else if (!there && mark.handle)
		drop(&mark);
	vgpu_queue_leave(&s, there ? &mark : NULL);
	return r;
}

#define SUBMIT(call, name, info)                                                                 \
	VkResult name(VkQueue queue, uint32_t n, const info *submits, VkFence fence)             \
	{                                                                                        \
		if (unlikely(!LOAD(&vgpu_others.name)))                                          \
			vgpu_find_api_of(#name);                                                 \
		return submit(call, (submit_call *)&vgpu_others.name, queue, n, submits, fence); \
	}
SUBMIT(0, vkQueueSubmit, VkSubmitInfo)
SUBMIT(1, vkQueueSubmit2, VkSubmitInfo2)
SUBMIT(2, vkQueueSubmit2KHR, VkSubmitInfo2)

/* --------------------------------------------------- the host learns that work has ended */
#define HOOK(result, name, params)
#define USE(result, name, params)
#define WAIT(result, name, params, args)                             \
	result name params                                           \
	{                                                            \
		VGPU_NEED_API(name, VK_ERROR_INITIALIZATION_FAILED); \
		result r = vgpu_others.name args;                    \
                                                                     \
		if (r == VK_SUCCESS)                                 \
			vgpu_marks_look(true);                       \
		return r;                                            \
	}
#include "../driver/vulkan.def"

/* ---------------------------------------------------------------- other ways to functions */
static PFN_vkVoidFunction hook_of(const char *name, PFN_vkVoidFunction real)
{
	void *hook = real ? vgpu_others_named(name) : NULL;

	/* No library exports it: for a queue that is not known. */
	if (hook == (void *)vkQueueSubmit2KHR)
		STORE((void **)&vgpu_others.vkQueueSubmit2KHR, (void *)real);
	return hook ? (PFN_vkVoidFunction)hook : real;
}

#define GET_PROC(name, of)                                                  \
	PFN_vkVoidFunction name(of from, const char *function)              \
	{                                                                   \
		VGPU_NEED_API(name, NULL);                                  \
		return hook_of(function, vgpu_others.name(from, function)); \
	}
GET_PROC(vkGetInstanceProcAddr, VkInstance)
GET_PROC(vkGetDeviceProcAddr, VkDevice)
