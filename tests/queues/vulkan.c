/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vulkan.c - keeps a card busy with Vulkan, on a real card and on the stub.
 *
 *   vulkan [--how full|one|idle|polls|two|signal] [--by device|instance|exported]
 *          [--call vkQueueSubmit] [--us 1000] [--depth 4] [--secs 2] [--start T] [--units N]
 *
 * A submission fills memory of the card for about US microseconds.
 *
 * full    DEPTH submissions are always in the queue
 * one     one, whose fence is waited for
 * idle    one without a fence, and vkQueueWaitIdle
 * polls   one, whose fence is asked for
 * two     as full, in two queues by turns
 * signal  one waits for a semaphore that a later one signals, in another queue
 *
 * by: how it finds the functions; call: vkQueueSubmit2 and vkQueueSubmit2KHR too. The rest as
 * opencl.c.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "../stress/programs/common.h"
#include "must.h"
#include "vk.h"

#define FUNCTIONS(X)                                                                               \
	X(int, vkCreateInstance, (const struct vk_instance *, const void *, void **))              \
	X(int, vkEnumeratePhysicalDevices, (void *, uint32_t *, void **))                          \
	X(void, vkGetPhysicalDeviceProperties, (void *, uint32_t *))                               \
	X(void, vkGetPhysicalDeviceQueueFamilyProperties,                                          \
	  (void *, uint32_t *, struct vk_family *))                                                \
	X(void, vkGetPhysicalDeviceMemoryProperties, (void *, struct vk_memories *))               \
	X(int, vkCreateDevice, (void *, const struct vk_device *, const void *, void **))          \
	X(void, vkDestroyDevice, (void *, const void *))                                           \
	X(void, vkGetDeviceQueue, (void *, uint32_t, uint32_t, void **))                           \
	X(int, vkCreateBuffer, (void *, const struct vk_buffer *, const void *, uint64_t *))       \
	X(void, vkGetBufferMemoryRequirements, (void *, uint64_t, struct vk_requirements *))       \
	X(int, vkAllocateMemory, (void *, const struct vk_memory *, const void *, uint64_t *))     \
	X(int, vkBindBufferMemory, (void *, uint64_t, uint64_t, uint64_t))                         \
	X(int, vkCreateCommandPool, (void *, const struct vk_pool *, const void *, uint64_t *))    \
	X(int, vkAllocateCommandBuffers, (void *, const struct vk_buffers *, void **))             \
	X(int, vkBeginCommandBuffer, (void *, const struct vk_begin *))                            \
	X(void, vkCmdFillBuffer, (void *, uint64_t, uint64_t, uint64_t, uint32_t))                 \
	X(int, vkEndCommandBuffer, (void *))                                                       \
	X(int, vkCreateSemaphore, (void *, const struct vk_semaphore *, const void *, uint64_t *)) \
	X(void, vkDestroySemaphore, (void *, uint64_t, const void *))                              \
	X(int, vkCreateFence, (void *, const VkFenceCreateInfo *, const void *, uint64_t *))       \
	X(void, vkDestroyFence, (void *, uint64_t, const void *))                                  \
	X(int, vkResetFences, (void *, uint32_t, const uint64_t *))                                \
	X(int, vkGetFenceStatus, (void *, uint64_t))                                               \
	X(int, vkWaitForFences, (void *, uint32_t, const uint64_t *, uint32_t, uint64_t))          \
	X(int, vkQueueWaitIdle, (void *))                                                          \
	X(int, vkDeviceWaitIdle, (void *))                                                         \
	X(int, vkQueueSubmit, (void *, uint32_t, const VkSubmitInfo *, uint64_t))

static struct {
#define X(result, name, params) result(*name) params;
	FUNCTIONS(X)
#undef X
	int (*submit2)(void *, uint32_t, const VkSubmitInfo2 *, uint64_t);
} vk;

#define VENDOR_NVIDIA 0x10DEu
#define FILL (1u << 26)
#define DEPTH_MOST 64
#define ONE_ALONE 1000000000000u

static void *lib, *instance, *device, *queue[2], *buffers[DEPTH_MOST + 1];
static PFN_vkVoidFunction (*of_instance)(void *, const char *), (*of_device)(void *, const char *);
static uint64_t fence[DEPTH_MOST + 1], target;
static const char *by, *call;
static unsigned depth;

static void *function(const char *name)
{
	void *r = NULL;

	if (strcmp(by, "exported") == 0)
		r = dlsym(lib, name);
	if (!r && device && strcmp(by, "device") == 0)
		r = (void *)of_device(device, name);
	return r ? r : (void *)of_instance(instance, name);
}

/* Those of a device once there is one. */
static void find(void)
{
#define X(result, name, params) *(void **)&vk.name = function(#name);
	FUNCTIONS(X)
#undef X
	if (device && strcmp(call, "vkQueueSubmit") != 0) {
		*(void **)&vk.submit2 = function(call);
		must(!vk.submit2, call);
	}
}

static void *physical(void)
{
	uint32_t n = 8, about[256];
	void *all[8] = {NULL};

	must(vk.vkEnumeratePhysicalDevices(instance, &n, all), "vkEnumeratePhysicalDevices");
	for (uint32_t i = 0; i < n; i++) {
		vk.vkGetPhysicalDeviceProperties(all[i], about);
		if (about[2] == VENDOR_NVIDIA)
			return all[i];
	}
	must(1, "no card");
	return NULL;
}

/* With more than one queue if there is such a one. */
static uint32_t family_of(void *card, uint32_t *count)
{
	struct vk_family all[16];
	uint32_t n = 16;

	vk.vkGetPhysicalDeviceQueueFamilyProperties(card, &n, all);
	for (uint32_t least = 2; least; least--)
		for (uint32_t i = 0; i < n; i++)
			if (all[i].flags & QUEUE_COMPUTE && all[i].count >= least) {
				*count = least;
				return i;
			}
	must(1, "no queue");
	return 0;
}

static uint64_t memory_of(void *card, const struct vk_requirements *want)
{
	struct vk_memory info = {MEMORY_INFO, NULL, want->size, 0};
	struct vk_memories all;
	uint64_t memory = 0;

	vk.vkGetPhysicalDeviceMemoryProperties(card, &all);
	while (info.kind + 1 < all.types &&
	       (!(want->types >> info.kind & 1) || !(all.type[info.kind].flags & MEMORY_OF_CARD)))
		info.kind++;
	must(vk.vkAllocateMemory(device, &info, NULL, &memory), "vkAllocateMemory");
	return memory;
}

static struct queue_wanted {
	uint32_t family, index;
} wanted[2];
static pthread_barrier_t both;

static void *ask_for_queue(void *at)
{
	const struct queue_wanted *w = at;

	pthread_barrier_wait(&both);
	vk.vkGetDeviceQueue(device, w->family, w->index, &queue[w - wanted]);
	return NULL;
}

/* Two threads are the first to ask for a queue. */
static void get_queues(uint32_t family, uint32_t count)
{
	pthread_t thread;

	wanted[0] = (struct queue_wanted){family, 0};
	wanted[1] = (struct queue_wanted){family, count - 1};
	pthread_barrier_init(&both, NULL, 2);
	must(pthread_create(&thread, NULL, ask_for_queue, &wanted[0]), "pthread_create");
	ask_for_queue(&wanted[1]);
	pthread_join(thread, NULL);
}

static void open_device(void *card, uint32_t family, uint32_t count)
{
	static const float equal[] = {1, 1};
	struct vk_feature sync = {SYNCHRONIZATION2_FEATURE, NULL, 1};
	struct vk_feature timeline = {TIMELINE_FEATURE, &sync, 1};
	struct vk_device_queue queues = {DEVICE_QUEUE_INFO, NULL, 0, family, count, equal};
	static const char *const khr = "VK_KHR_synchronization2";
	struct vk_device info = {.type = DEVICE_INFO,
				 .next = &timeline,
				 .queues = 1,
				 .queue = &queues,
				 .extensions = 1,
				 .extension = &khr};

	must(vk.vkCreateDevice(card, &info, NULL, &device), "vkCreateDevice");
	find();
	get_queues(family, count);
}

static void open_card(void)
{
	struct vk_application app = {.type = APPLICATION_INFO, .name = "vulkan", .api = API_1_3};
	struct vk_instance info = {.type = INSTANCE_INFO, .application = &app};
	struct vk_buffer buffer = {.type = BUFFER_INFO, .size = FILL, .usage = BUFFER_TRANSFER_TO};
	struct vk_pool pool = {.type = POOL_INFO};
	struct vk_buffers some = {.type = COMMAND_BUFFER_INFO, .count = 1};
	static const VkFenceCreateInfo new_fence = {FENCE_INFO, NULL, 0};
	struct vk_requirements want;
	uint32_t count = 1;
	void *card;

	lib = dlopen("libvulkan.so.1", RTLD_NOW);
	must(!lib, "no libvulkan.so.1");
	*(void **)&of_instance = dlsym(lib, "vkGetInstanceProcAddr");
	must(!of_instance, "vkGetInstanceProcAddr");
	*(void **)&vk.vkCreateInstance = (void *)of_instance(NULL, "vkCreateInstance");
	must(vk.vkCreateInstance(&info, NULL, &instance), "vkCreateInstance");
	*(void **)&of_device = (void *)of_instance(instance, "vkGetDeviceProcAddr");
	find();
	card = physical();
	pool.family = family_of(card, &count);
	open_device(card, pool.family, count);
	must(vk.vkCreateBuffer(device, &buffer, NULL, &target), "vkCreateBuffer");
	vk.vkGetBufferMemoryRequirements(device, target, &want);
	must(vk.vkBindBufferMemory(device, target, memory_of(card, &want), 0), "memory");
	for (unsigned i = 0; i <= DEPTH_MOST; i++) {
		must(vk.vkCreateCommandPool(device, &pool, NULL, &some.pool), "pool");
		must(vk.vkAllocateCommandBuffers(device, &some, &buffers[i]), "buffers");
		must(vk.vkCreateFence(device, &new_fence, NULL, &fence[i]), "vkCreateFence");
	}
}

static void record(unsigned i, unsigned fills)
{
	static const struct vk_begin begin = {BEGIN_INFO, NULL, 4,
					      NULL}; /* may be in flight twice */

	must(vk.vkBeginCommandBuffer(buffers[i], &begin), "vkBeginCommandBuffer");
	while (fills--)
		vk.vkCmdFillBuffer(buffers[i], target, 0, FILL, 0);
	must(vk.vkEndCommandBuffer(buffers[i]), "vkEndCommandBuffer");
}

static void submit(void *q, unsigned i, bool fenced)
{
	VkSubmitInfo one = {.type = SUBMIT_INFO, .buffers = 1, .buffer = &buffers[i]};
	struct vk_submit2_buffer buffer = {SUBMIT2_BUFFER_INFO, NULL, buffers[i], 0};
	VkSubmitInfo2 two = {.type = SUBMIT2_INFO, .buffers = 1, .buffer = &buffer};

	if (vk.submit2)
		must(vk.submit2(q, 1, &two, fenced ? fence[i] : 0), call);
	else
		must(vk.vkQueueSubmit(q, 1, &one, fenced ? fence[i] : 0), call);
}

static void reset(unsigned i)
{
	must(vk.vkWaitForFences(device, 1, &fence[i], 1, ONE_ALONE), "vkWaitForFences");
	must(vk.vkResetFences(device, 1, &fence[i]), "vkResetFences");
}

/* Seconds that one takes, the least of some. */
static double takes(void)
{
	double best = 1e9;

	for (int i = 0; i < 8; i++) {
		double began = now_s();

		submit(queue[0], DEPTH_MOST, true);
		reset(DEPTH_MOST);
		if (now_s() - began < best)
			best = now_s() - began;
	}
	return best;
}

static unsigned long full(unsigned queues, double until)
{
	bool there[DEPTH_MOST] = {false};
	unsigned long n = 0;

	for (unsigned i = 0; now_s() < until; i = (i + 1) % depth) {
		if (there[i]) {
			reset(i);
			n++;
		}
		submit(queue[i % queues], i, true);
		there[i] = true;
	}
	for (unsigned i = 0; i < depth; i++)
		if (there[i])
			reset(i);
	return n;
}

static unsigned long one(const char *how, double until)
{
	unsigned long n = 0;

	for (; now_s() < until; n++) {
		submit(queue[0], 0, strcmp(how, "idle") != 0);
		if (strcmp(how, "idle") == 0) {
			must(vk.vkQueueWaitIdle(queue[0]), "vkQueueWaitIdle");
			continue;
		}
		while (strcmp(how, "polls") == 0 && vk.vkGetFenceStatus(device, fence[0]) != 0)
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		reset(0);
	}
	return n;
}

static unsigned long signalled(double until)
{
	static const struct vk_semaphore_type timeline = {SEMAPHORE_TYPE_INFO, NULL,
							  SEMAPHORE_TIMELINE, 0};
	static const struct vk_semaphore info = {SEMAPHORE_INFO, &timeline, 0};
	static const uint32_t stage = STAGE_ALL;
	static const uint64_t value = 1;
	struct vk_timeline waits = {TIMELINE_SUBMIT_INFO, NULL, 1, &value, 0, NULL};
	struct vk_timeline signals = {TIMELINE_SUBMIT_INFO, NULL, 0, NULL, 1, &value};
	unsigned long n = 0;

	for (; now_s() < until; n += 2) {
		uint64_t semaphore = 0;
		VkSubmitInfo first = {SUBMIT_INFO, &waits,      1, NULL, &stage,
				      1,           &buffers[0], 0, NULL};
		VkSubmitInfo second = {SUBMIT_INFO, &signals,    0, NULL, NULL,
				       1,           &buffers[1], 1, NULL};

		must(vk.vkCreateSemaphore(device, &info, NULL, &semaphore), "vkCreateSemaphore");
		first.wait = second.signal = &semaphore;
		must(vk.vkQueueSubmit(queue[0], 1, &first, fence[0]), "first");
		must(vk.vkQueueSubmit(queue[1], 1, &second, fence[1]), "second");
		reset(0);
		reset(1);
		vk.vkDestroySemaphore(device, semaphore, NULL);
	}
	return n;
}

static unsigned long run(const char *how, double until)
{
	if (strcmp(how, "full") == 0 || strcmp(how, "two") == 0)
		return full(strcmp(how, "two") == 0 ? 2 : 1, until);
	if (strcmp(how, "signal") == 0)
		return signalled(until);
	return one(how, until);
}

int main(int argc, char **argv)
{
	const char *how = opt(argc, argv, "--how", "full");
	double us = atof(opt(argc, argv, "--us", "1000")),
	       secs = atof(opt(argc, argv, "--secs", "2"));
	double start = atof(opt(argc, argv, "--start", "0")), alone, spent;
	double (*busy)(double, double) = NULL;
	unsigned units = (unsigned)atol(opt(argc, argv, "--units", "0"));
	unsigned long n;

	depth = (unsigned)atoi(opt(argc, argv, "--depth", "4"));
	must(depth < 1 || depth > DEPTH_MOST, "--depth");
	by = opt(argc, argv, "--by", "device");
	call = opt(argc, argv, "--call", "vkQueueSubmit");
	open_card();
	*(void **)&busy = dlsym(lib, "stub_busy");
	if (!units && busy)
		units = (unsigned)(us * 1e6 / FILL + 0.5);
	if (!units) {
		record(DEPTH_MOST, 16);
		takes();
		units = (unsigned)(16 * us * 1e-6 / takes() + 0.5);
	}
	for (unsigned i = 0; i <= DEPTH_MOST; i++)
		record(i, units ? units : 1);
	alone = takes();
	run(how, start);
	if (start < now_s())
		start = now_s();
	n = run(how, start + secs);
	spent = now_s() - start;
	printf("{\"api\":\"vulkan\",\"how\":\"%s\",\"rate\":%.2f,\"alone_us\":%.1f,\"units\":%u,"
	       "\"part\":%.4f,"
	       "\"secs\":%.3f,\"n\":%lu}\n",
	       how, (double)n / spent, 1e6 * alone, units,
	       busy ? busy(start, start + spent) / spent : (double)n * alone / spent, spent, n);
	fflush(stdout);
	full(1, now_s() + (busy ? 0 : 1)); /* another may still count */
	must(vk.vkDeviceWaitIdle(device), "vkDeviceWaitIdle");
	for (unsigned i = 0; i <= DEPTH_MOST; i++)
		vk.vkDestroyFence(device, fence[i], NULL);
	vk.vkDestroyDevice(device, NULL);
	return 0;
}
