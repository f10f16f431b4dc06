/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan.c - a libvulkan for tests: what vulkan.c and libvgpu call. A fill takes the time of its
 * bytes, 1 GB in a millisecond. The device's functions, as vkGetDeviceProcAddr tells them, are others than
 * those that are exported, and vkQueueSubmit2KHR is not exported.
 */
#include "../../../libvgpu/driver/others_abi.h"
#include "card.h"

#define ABORT() (fprintf(stderr, "stub: %s: not as it may be\n", __func__), abort())

/* A new fence takes the driver long. */
#define NEW_FENCE_NS 300000

struct fence {
	struct command *command; /* NULL: not submitted since the reset */
};
struct buffer {
	double takes;
};
struct semaphore {
	struct happening signal;
};

static struct queue queues[2];
static int fences; /* that are there */
static char instance, physical, device, memory, pool;

VkResult vkCreateInstance(const void *info, const void *a, void **out)
{
	*out = &instance;
	return 0;
}

VkResult vkEnumeratePhysicalDevices(void *i, uint32_t *n, void **out)
{
	if (out)
		out[0] = &physical;
	*n = 1;
	return 0;
}

void vkGetPhysicalDeviceProperties(void *p, uint32_t *out)
{
	out[2] = 0x10DE; /* the vendor */
}

/* All bits of every field: any kind of queue or memory does. */
void vkGetPhysicalDeviceQueueFamilyProperties(void *p, uint32_t *n, void *out)
{
	if (out)
		memset(out, 0xff, 24);
	*n = 1;
}

void vkGetPhysicalDeviceMemoryProperties(void *p, uint32_t *out)
{
	out[0] = 1;
	out[1] = 0xff;
}

VkResult vkCreateDevice(void *p, const void *info, const void *a, void **out)
{
	open_card();
	*out = &device;
	return 0;
}

void vkDestroyDevice(void *d, const void *a)
{
	if (fences)
		ABORT(); /* what is made of a device goes before it */
}

void vkGetDeviceQueue(void *d, uint32_t family, uint32_t index, void **out)
{
	*out = &queues[index];
}

VkResult vkCreateBuffer(void *d, const void *info, const void *a, uint64_t *out)
{
	*out = 1;
	return 0;
}

void vkGetBufferMemoryRequirements(void *d, uint64_t b, uint64_t *out)
{
	out[0] = 1 << 20;
	out[1] = 1;
	out[2] = 1;
}

VkResult vkAllocateMemory(void *d, const void *info, const void *a, void **out)
{
	*out = &memory;
	return 0;
}

VkResult vkBindBufferMemory(void *d, uint64_t b, uint64_t m, uint64_t at)
{
	return 0;
}

VkResult vkCreateCommandPool(void *d, const void *info, const void *a, void **out)
{
	*out = &pool;
	return 0;
}

VkResult vkAllocateCommandBuffers(void *d, const void *info, void **out)
{
	*out = calloc(1, sizeof(struct buffer));
	return 0;
}

VkResult vkBeginCommandBuffer(void *b, const void *info)
{
	((struct buffer *)b)->takes = 0;
	return 0;
}

void vkCmdFillBuffer(void *b, uint64_t buffer, uint64_t at, uint64_t size, uint32_t word)
{
	((struct buffer *)b)->takes += 1e-12 * (double)size;
}

VkResult vkEndCommandBuffer(void *b)
{
	return 0;
}

VkResult vkCreateSemaphore(void *d, const void *info, const void *a, uint64_t *out)
{
	*out = (uintptr_t)calloc(1, sizeof(struct semaphore));
	return 0;
}

/* Nothing waits for it any more. */
void vkDestroySemaphore(void *d, uint64_t handle, const void *a)
{
	struct semaphore *s = (struct semaphore *)(uintptr_t)handle;

	pthread_mutex_lock(&card_lock);
	given_up(s->signal.by);
	pthread_mutex_unlock(&card_lock);
	free(s);
}

VkResult vkCreateFence(void *d, const VkFenceCreateInfo *info, const void *a, uint64_t *out)
{
	*out = (uintptr_t)calloc(1, sizeof(struct fence));
	__atomic_add_fetch(&fences, 1, __ATOMIC_RELAXED);
	nanosleep(&(struct timespec){.tv_nsec = NEW_FENCE_NS}, NULL);
	return 0;
}

static void forget(struct fence *f)
{
	pthread_mutex_lock(&card_lock);
	given_up(f->command);
	f->command = NULL;
	pthread_mutex_unlock(&card_lock);
}

/* No fence may be touched while its work is on its way. */
static struct fence *idle(uint64_t handle)
{
	struct fence *f = (struct fence *)(uintptr_t)handle;

	if (f->command && !over(f->command))
		ABORT();
	return f;
}

void vkDestroyFence(void *d, uint64_t f, const void *a)
{
	if (!f)
		return;
	forget(idle(f));
	free((void *)(uintptr_t)f);
	__atomic_sub_fetch(&fences, 1, __ATOMIC_RELAXED);
}

VkResult vkResetFences(void *d, uint32_t n, const uint64_t *f)
{
	for (uint32_t i = 0; i < n; i++)
		forget(idle(f[i]));
	return 0;
}

VkResult vkGetFenceStatus(void *d, uint64_t handle)
{
	struct fence *f = (struct fence *)(uintptr_t)handle;

	return f->command && over(f->command) ? VK_SUCCESS : VK_NOT_READY;
}

VkResult vkWaitForFences(void *d, uint32_t n, const uint64_t *f, uint32_t all, uint64_t timeout)
{
	for (uint32_t i = 0; i < n; i++)
		while (vkGetFenceStatus(d, f[i]) != VK_SUCCESS)
			card_nap();
	return 0;
}

VkResult vkQueueWaitIdle(void *q)
{
	await_queue(q);
	return 0;
}

VkResult vkDeviceWaitIdle(void *d)
{
	vkQueueWaitIdle(&queues[0]);
	return vkQueueWaitIdle(&queues[1]);
}

static struct semaphore *first(uint32_t n, const uint64_t *list)
{
	return n ? (struct semaphore *)(uintptr_t)list[0] : NULL;
}

static VkResult work(void *q, double takes, struct semaphore *wait, struct semaphore *signal,
		     uint64_t fence)
{
	struct fence *f = fence ? idle(fence) : NULL;
	struct command *c = put(q, takes, wait ? &wait->signal : NULL);

	pthread_mutex_lock(&card_lock);
	if (signal)
		signal->signal.by = kept(c);
	if (f)
		f->command = kept(c);
	given_up(c);
	pthread_mutex_unlock(&card_lock);
	return 0;
}

/* Who uses a queue at a time in which another does breaks a rule of the API. */
static int users[2];

static void used(void *q, int by)
{
	if (__atomic_add_fetch(&users[(struct queue *)q - queues], by, __ATOMIC_SEQ_CST) > 1)
		ABORT();
}

/* Of one semaphore each, at most. */
static VkResult submit(void *q, uint32_t n, const VkSubmitInfo *s, uint64_t fence)
{
	used(q, 1);
	for (uint32_t i = 0; i < n; i++) {
		double takes = 0;

		for (uint32_t k = 0; k < s[i].buffers; k++)
			takes += ((struct buffer *const *)s[i].buffer)[k]->takes;
		work(q, takes, first(s[i].waits, s[i].wait), first(s[i].signals, s[i].signal),
		     i + 1 == n ? fence : 0);
	}
	if (!n)
		work(q, 0, NULL, NULL, fence);
	used(q, -1);
	return 0;
}

VkResult vkQueueSubmit(void *q, uint32_t n, const VkSubmitInfo *s, uint64_t fence)
{
	return submit(q, n, s, fence);
}

struct buffer_info {
	int32_t type;
	const void *next;
	struct buffer *buffer;
	uint32_t mask;
};

/* Without semaphores. */
static VkResult submit2(void *q, uint32_t n, const VkSubmitInfo2 *s, uint64_t fence)
{
	double takes = 0;

	used(q, 1);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < s[i].buffers; k++)
			takes += ((const struct buffer_info *)s[i].buffer)[k].buffer->takes;
	work(q, takes, NULL, NULL, fence);
	used(q, -1);
	return 0;
}

VkResult vkQueueSubmit2(void *q, uint32_t n, const VkSubmitInfo2 *s, uint64_t fence)
{
	return submit2(q, n, s, fence);
}

PFN_vkVoidFunction vkGetInstanceProcAddr(void *i, const char *name);
PFN_vkVoidFunction vkGetDeviceProcAddr(void *d, const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} all[] = {
#define F(name) {#name, (void *)name},
		{"vkQueueSubmit", (void *)submit},
		{"vkQueueSubmit2", (void *)submit2},
		{"vkQueueSubmit2KHR", (void *)submit2},
		F(vkCreateInstance) F(vkEnumeratePhysicalDevices) F(
			vkGetPhysicalDeviceProperties) F(vkGetPhysicalDeviceQueueFamilyProperties)
			F(vkGetPhysicalDeviceMemoryProperties) F(vkCreateDevice) F(
				vkDestroyDevice) F(vkGetDeviceQueue) F(vkCreateBuffer)
				F(vkGetBufferMemoryRequirements) F(vkAllocateMemory) F(
					vkBindBufferMemory) F(vkCreateCommandPool)
					F(vkAllocateCommandBuffers) F(vkBeginCommandBuffer) F(
						vkCmdFillBuffer) F(vkEndCommandBuffer)
						F(vkCreateSemaphore) F(vkDestroySemaphore) F(
							vkCreateFence) F(vkDestroyFence)
							F(vkResetFences) F(vkGetFenceStatus) F(
								vkWaitForFences) F(vkQueueWaitIdle)
								F(vkDeviceWaitIdle) F(
									vkGetDeviceProcAddr)
									F(vkGetInstanceProcAddr)};

	/* Two threads that ask at a time meet here. */
	if (strcmp(name, "vkDestroyFence") == 0)
		nanosleep(&(struct timespec){.tv_nsec = NEW_FENCE_NS}, NULL);
	for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
		if (strcmp(name, all[k].name) == 0)
			return (PFN_vkVoidFunction)all[k].function;
	return NULL;
}

PFN_vkVoidFunction vkGetInstanceProcAddr(void *i, const char *name)
{
	return vkGetDeviceProcAddr(NULL, name);
}
