/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan.c - work that Vulkan puts on a card passes the gate of the hard cap. The mark of a
 * submission is a fence of ours. Where the program gives one, that is the fence of an empty
 * submission behind it, so that the mark is there when the program has waited for its own. Only who
 * submits may submit: nobody else may use the queue meanwhile.
 */
#include <stdlib.h>

#include "../base/table.h"
#include "../compute/queues.h"
#include "../job/job.h"
#include "others.h"

#define SPARE 64

/* What the driver, or a layer before it, has for a device. */
struct device {
	VkDevice handle;
	VkResult (*submit)(VkQueue, uint32_t, const VkSubmitInfo *, VkFence);
	VkResult (*submit2)(VkQueue, uint32_t, const VkSubmitInfo2 *, VkFence);
	VkResult (*submit2_khr)(VkQueue, uint32_t, const VkSubmitInfo2 *, VkFence);
	VkResult (*create)(VkDevice, const VkFenceCreateInfo *, const void *, VkFence *);
	VkResult (*reset)(VkDevice, uint32_t, const VkFence *);
	VkResult (*status)(VkDevice, VkFence);
	void (*destroy)(VkDevice, VkFence, const void *);
	/* Fences that no submission has: the first submission of a new one takes long. */
	pthread_mutex_t lock;
	VkFence spare[SPARE];
	unsigned spares;
};

/* Of queues, and of devices. */
static struct vgpu_table queues = VGPU_TABLE_INIT, devices = VGPU_TABLE_INIT;

static uint64_t key_of(const void *handle)
{
	return (uintptr_t)handle;
}

static struct device *found_in(struct vgpu_table *t, const void *handle)
{
	struct vgpu_item item;

	if (!vgpu_table_get(t, key_of(handle), &item))
		return NULL;
	return (struct device *)(uintptr_t)item.other;
}

static void *function_of(VkDevice device, const char *name)
{
	return (void *)vgpu_others.vkGetDeviceProcAddr(device, name);
}

static struct device *make(VkDevice handle)
{
	struct device *d = calloc(1, sizeof *d);

	if (!d)
		return NULL;
	d->handle = handle;
	pthread_mutex_init(&d->lock, NULL);
	*(void **)&d->submit = function_of(handle, "vkQueueSubmit");
	*(void **)&d->submit2 = function_of(handle, "vkQueueSubmit2");
	*(void **)&d->submit2_khr = function_of(handle, "vkQueueSubmit2KHR");
	*(void **)&d->create = function_of(handle, "vkCreateFence");
	*(void **)&d->reset = function_of(handle, "vkResetFences");
	*(void **)&d->status = function_of(handle, "vkGetFenceStatus");
	*(void **)&d->destroy = function_of(handle, "vkDestroyFence");
	return d;
}

/* Also before it is known whether the program is of a job. */
static void note(VkDevice handle, VkQueue queue)
{
	struct vgpu_item item = {.key = key_of(handle), .card = -1};
	struct device *d;

	if (!vgpu_others.vkGetDeviceProcAddr || !queue)
		return;
	d = found_in(&devices, handle);
	if (!d) {
		d = make(handle);
		item.other = (uintptr_t)d;
		if (!d || !vgpu_table_add(&devices, &item)) {
			free(d);
			return;
		}
		if (item.other != (uintptr_t)d) /* another thread was faster */
			free(d);
		d = (struct device *)(uintptr_t)item.other;
	}
	item = (struct vgpu_item){.key = key_of(queue),
				  .other = (uintptr_t)d,
				  .owner = key_of(handle),
				  .card = -1};
	vgpu_table_add(&queues, &item);
}

void vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue)
{
	vgpu_need_api(&vgpu_vulkan);
	if (!vgpu_others.vkGetDeviceQueue)
		return;
	vgpu_others.vkGetDeviceQueue(device, family, index, queue);
	note(device, *queue);
}

void vkGetDeviceQueue2(VkDevice device, const void *info, VkQueue *queue)
{
	vgpu_need_api(&vgpu_vulkan);
	if (!vgpu_others.vkGetDeviceQueue2)
		return;
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

	vgpu_need_api(&vgpu_vulkan);
	if (!vgpu_others.vkDestroyDevice)
		return;
	if (device && vgpu_table_take(&devices, key_of(device), &item)) {
		struct device *d = (struct device *)(uintptr_t)item.other;

		vgpu_table_sweep(&queues, key_of(device), goes);
		vgpu_marks_forget(d);
		while (d->spares)
			d->destroy(device, d->spare[--d->spares], NULL);
		free(d);
	}
	vgpu_others.vkDestroyDevice(device, allocator);
}

/* --------------------------------------------------------------------------- marks */
static bool ended(const struct vgpu_mark *m)
{
	const struct device *d = m->device;

	return d->status(d->handle, m->handle) != VK_NOT_READY;
}

/* 0: there is none. */
static VkFence take_fence(struct device *d)
{
	static const VkFenceCreateInfo info = {.type = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	VkFence fence = 0;

	pthread_mutex_lock(&d->lock);
	if (d->spares)
		fence = d->spare[--d->spares];
	pthread_mutex_unlock(&d->lock);
	if (!fence && d->create(d->handle, &info, NULL, &fence) != VK_SUCCESS)
		return 0;
	return fence;
}

static void give_fence(struct device *d, VkFence fence)
{
	bool kept = d->reset(d->handle, 1, &fence) == VK_SUCCESS;

	pthread_mutex_lock(&d->lock);
	kept = kept && d->spares < SPARE;
	if (kept)
		d->spare[d->spares++] = fence;
	pthread_mutex_unlock(&d->lock);
	if (!kept)
		d->destroy(d->handle, fence, NULL);
}

static void drop(const struct vgpu_mark *m)
{
	give_fence(m->device, m->handle);
}

static const struct vgpu_mark_kind kind = {.ended = ended, .drop = drop};

/* ------------------------------------------------------------------------ submissions */
struct submission {
	struct vgpu_submission s;
	struct device *d;
	VkFence mark;
};

/* False: it passes as it is. work: it has command buffers; what only waits and signals takes nothing
 * of the card, and others may wait for it. */
static bool enter(struct submission *s, struct device *d, bool work)
{
	uint32_t cards;

	if (likely(!__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED)) || !work || !d ||
	    !d->submit || !d->create || !d->reset || !d->status || !d->destroy)
		return false;
	cards = vgpu_queues_gated(vgpu_others_cards());
	if (!cards)
		return false;
	s->d = d;
	s->mark = take_fence(d);
	vgpu_queue_wait(cards);
	vgpu_queue_begin(&s->s, cards);
	return true;
}

/* fence: the program's, which no submission has yet; or 0. Returns what the program is told. */
static VkResult leave(struct submission *s, VkQueue queue, VkFence fence, VkResult r)
{
	struct device *d = s->d;
	struct vgpu_mark mark = {.kind = &kind, .queue = queue, .device = d, .handle = s->mark};
	bool there = r == VK_SUCCESS && s->mark;

	if (there && fence)
		r = d->submit(queue, 0, NULL, fence);
	if (!there && s->mark)
		give_fence(d, s->mark);
	vgpu_queue_leave(&s->s, there ? &mark : NULL);
	return r;
}

#define GATED(member, work)                                           \
	do {                                                          \
		struct submission s;                                  \
		VkResult r;                                           \
                                                                      \
		if (!enter(&s, d, work))                              \
			return call(queue, n, submits, fence);        \
		r = call(queue, n, submits, s.mark ? s.mark : fence); \
		return leave(&s, queue, s.mark ? fence : 0, r);       \
	} while (0)

static bool works(uint32_t n, const VkSubmitInfo *submits)
{
	for (uint32_t i = 0; i < n; i++)
		if (submits[i].buffers)
			return true;
	return false;
}

static bool works2(uint32_t n, const VkSubmitInfo2 *submits)
{
	for (uint32_t i = 0; i < n; i++)
		if (submits[i].buffers)
			return true;
	return false;
}

VkResult vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *submits, VkFence fence)
{
	struct device *d = found_in(&queues, queue);
	VkResult (*call)(VkQueue, uint32_t, const VkSubmitInfo *, VkFence);

	vgpu_need_api(&vgpu_vulkan);
	call = d && d->submit ? d->submit : vgpu_others.vkQueueSubmit;
	if (!call)
		return VK_ERROR_INITIALIZATION_FAILED;
	GATED(submit, works(n, submits));
}

static VkResult submit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *submits, VkFence fence,
			bool khr)
{
	struct device *d = found_in(&queues, queue);
	VkResult (*call)(VkQueue, uint32_t, const VkSubmitInfo2 *, VkFence);

	vgpu_need_api(&vgpu_vulkan);
	call = d ? (khr ? d->submit2_khr : d->submit2) : NULL;
	if (!call)
		call = khr ? vgpu_others.vkQueueSubmit2KHR : vgpu_others.vkQueueSubmit2;
	if (!call)
		return VK_ERROR_INITIALIZATION_FAILED;
	GATED(submit2, works2(n, submits));
}

VkResult vkQueueSubmit2(VkQueue queue, uint32_t n, const VkSubmitInfo2 *submits, VkFence fence)
{
	return submit2(queue, n, submits, fence, false);
}

VkResult vkQueueSubmit2KHR(VkQueue queue, uint32_t n, const VkSubmitInfo2 *submits, VkFence fence)
{
	return submit2(queue, n, submits, fence, true);
}

/* --------------------------------------------------- the host learns that work has ended */
#define WAITED(name, args)                                     \
	do {                                                   \
		VkResult r;                                    \
                                                               \
		vgpu_need_api(&vgpu_vulkan);                   \
		if (!vgpu_others.name)                         \
			return VK_ERROR_INITIALIZATION_FAILED; \
		r = vgpu_others.name args;                     \
		if (r == VK_SUCCESS)                           \
			vgpu_others_waited(true);              \
		return r;                                      \
	} while (0)

VkResult vkWaitForFences(VkDevice device, uint32_t n, const VkFence *fences, uint32_t all,
			 uint64_t timeout)
{
	WAITED(vkWaitForFences, (device, n, fences, all, timeout));
}

VkResult vkGetFenceStatus(VkDevice device, VkFence fence)
{
	WAITED(vkGetFenceStatus, (device, fence));
}

VkResult vkQueueWaitIdle(VkQueue queue)
{
	WAITED(vkQueueWaitIdle, (queue));
}

VkResult vkDeviceWaitIdle(VkDevice device)
{
	WAITED(vkDeviceWaitIdle, (device));
}

/* ---------------------------------------------------------------- other ways to functions */
static PFN_vkVoidFunction hook_of(const char *name, PFN_vkVoidFunction real)
{
	void *hook = real ? vgpu_others_named(name) : NULL;

	/* No library exports it: for a queue that is not known. */
	if (hook == (void *)vkQueueSubmit2KHR)
		__atomic_store_n((void **)&vgpu_others.vkQueueSubmit2KHR, (void *)real,
				 __ATOMIC_RELAXED);
	return hook ? (PFN_vkVoidFunction)hook : real;
}

PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
	vgpu_need_api(&vgpu_vulkan);
	if (!vgpu_others.vkGetInstanceProcAddr)
		return NULL;
	return hook_of(name, vgpu_others.vkGetInstanceProcAddr(instance, name));
}

PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char *name)
{
	vgpu_need_api(&vgpu_vulkan);
	if (!vgpu_others.vkGetDeviceProcAddr)
		return NULL;
	return hook_of(name, vgpu_others.vkGetDeviceProcAddr(device, name));
}
