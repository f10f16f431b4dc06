/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan.c - work that Vulkan puts on a card passes the gate of the hard cap. The mark of a
 * submission is a fence of ours: the submission's own where the program gives none, else that of an
 * empty one behind it. Only who submits may submit: nobody else may use the queue meanwhile.
 */
#include <stdlib.h>

#include "../base/table.h"
#include "../compute/queues.h"
#include "../job/job.h"
#include "others.h"

/* What the driver, or a layer before it, has for a device. */
struct device {
	VkDevice handle;
	VkResult (*submit)(VkQueue, uint32_t, const VkSubmitInfo *, VkFence);
	VkResult (*submit2)(VkQueue, uint32_t, const VkSubmitInfo2 *, VkFence);
	VkResult (*submit2_khr)(VkQueue, uint32_t, const VkSubmitInfo2 *, VkFence);
	VkResult (*create)(VkDevice, const VkFenceCreateInfo *, const void *, VkFence *);
	VkResult (*status)(VkDevice, VkFence);
	void (*destroy)(VkDevice, VkFence, const void *);
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
	*(void **)&d->submit = function_of(handle, "vkQueueSubmit");
	*(void **)&d->submit2 = function_of(handle, "vkQueueSubmit2");
	*(void **)&d->submit2_khr = function_of(handle, "vkQueueSubmit2KHR");
	*(void **)&d->create = function_of(handle, "vkCreateFence");
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
		if (!d || !vgpu_table_put(&devices, &item)) {
			free(d);
			return;
		}
	}
	item = (struct vgpu_item){.key = key_of(queue),
				  .other = (uintptr_t)d,
				  .owner = key_of(handle),
				  .card = -1};
	if (!found_in(&queues, queue))
		vgpu_table_put(&queues, &item);
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
		vgpu_table_sweep(&queues, key_of(device), goes);
		vgpu_marks_forget((struct device *)(uintptr_t)item.other);
		free((struct device *)(uintptr_t)item.other);
	}
	vgpu_others.vkDestroyDevice(device, allocator);
}

/* --------------------------------------------------------------------------- marks */
static bool ended(const struct vgpu_mark *m)
{
	const struct device *d = m->device;

	return d->status(d->handle, m->handle) != VK_NOT_READY;
}

static bool held(const struct vgpu_mark *m)
{
	(void)m;
	return false;
}

static void drop(const struct vgpu_mark *m)
{
	const struct device *d = m->device;

	d->destroy(d->handle, m->handle, NULL);
}

static const struct vgpu_mark_kind kind = {ended, held, drop};

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
	static const VkFenceCreateInfo info = {.type = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
	uint32_t cards;

	if (likely(!__atomic_load_n(&vgpu_gate_any, __ATOMIC_RELAXED)) || !work || !d ||
	    !d->submit || !d->create || !d->status || !d->destroy)
		return false;
	cards = vgpu_queues_gated(vgpu_others_cards());
	if (!cards)
		return false;
	s->d = d;
	s->mark = 0;
	vgpu_queue_enter(&s->s, cards);
	d->create(d->handle, &info, NULL, &s->mark);
	return true;
}

/* apart: the mark is not the submission's own fence. */
static void leave(struct submission *s, VkQueue queue, bool apart, VkResult r)
{
	const struct device *d = s->d;
	struct vgpu_mark mark = {&kind, queue, s->d, s->mark, NULL};
	bool there = r == VK_SUCCESS && s->mark;

	if (there && apart)
		there = d->submit(queue, 0, NULL, s->mark) == VK_SUCCESS;
	if (!there && s->mark)
		d->destroy(d->handle, s->mark, NULL);
	vgpu_queue_leave(&s->s, there ? &mark : NULL);
}

#define GATED(member, work)                                          \
	do {                                                         \
		struct submission s;                                 \
		VkResult r;                                          \
                                                                     \
		if (!enter(&s, d, work))                             \
			return call(queue, n, submits, fence);       \
		r = call(queue, n, submits, fence ? fence : s.mark); \
		leave(&s, queue, fence != 0, r);                     \
		return r;                                            \
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
