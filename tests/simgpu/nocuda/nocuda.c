// SPDX-License-Identifier: Apache-2.0
/*
 * nocuda.c - a program that uses a card without CUDA, as OpenCL, Vulkan and OpenGL do: it asks the
 * kernel driver itself (../librm), here for memory in steps of 256 MiB until there is no more.
 *
 *   nocuda [SECONDS]     and holds it so long, before it gives all back and asks for one more
 *
 * Lines of JSON: what it is told of the card, what it got, and whether it gets some afterwards.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../librm/local.h"

#define STEP (256ull << 20)
#define CLASS_DEVICE 0x80u
#define CLASS_SUBDEVICE 0x2080u
#define CLASS_GROUP 0xA06Cu
#define CMD_FB_INFO 0x20801303u
#define FB_TOTAL_RAM_SIZE 0x8u
#define FB_HEAP_FREE 0x16u

static int fd;
static uint32_t client;

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "nocuda: %s\n", what);
	exit(1);
}

static uint32_t make(uint32_t parent, uint32_t cls, void *params, uint32_t size, uint32_t *handle)
{
	struct rm_alloc64 a = {.root = client,
			       .parent = parent,
			       .cls = cls,
			       .params = (uintptr_t)params,
			       .size = size};

	must(ioctl(fd, _IOWR('F', ESC_ALLOC, struct rm_alloc64), &a) == 0, "no answer");
	*handle = a.object;
	return a.status;
}

/* In both forms by turns. */
static uint32_t take(uint32_t device, unsigned i)
{
	struct memory_params p = {.size = STEP};
	struct rm_vid_heap h = {.root = client, .parent = device, .function = 2, .size = STEP};
	uint32_t handle;

	if (i % 2)
		return make(device, CLASS_LOCAL_USER, &p, sizeof(p), &handle);
	must(ioctl(fd, _IOWR('F', ESC_VID_HEAP, struct rm_vid_heap), &h) == 0, "no answer");
	return h.status;
}

static uint32_t device_of(uint32_t *subdevice)
{
	struct device_params p = {.instance = 0};
	uint32_t device, zero = 0;

	must(make(client, CLASS_DEVICE, &p, sizeof(p), &device) == NV_OK, "no device");
	must(make(device, CLASS_SUBDEVICE, &zero, sizeof(zero), subdevice) == NV_OK,
	     "no subdevice");
	return device;
}

static void told(uint32_t subdevice)
{
	struct fb_info_params p = {.n = 2, .entry = {{FB_TOTAL_RAM_SIZE, 0}, {FB_HEAP_FREE, 0}}};
	struct rm_control c = {.client = client,
			       .object = subdevice,
			       .cmd = CMD_FB_INFO,
			       .params = (uintptr_t)&p,
			       .size = sizeof(p)};

	must(ioctl(fd, _IOWR('F', ESC_CONTROL, struct rm_control), &c) == 0 && c.status == NV_OK,
	     "not told");
	printf("{\"total_mib\":%u,\"free_mib\":%u}\n", p.entry[0].kib >> 10, p.entry[1].kib >> 10);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	uint32_t device, subdevice, group, status = NV_OK;
	struct rm_free f = {0};
	unsigned n = 0;

	fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	must(fd >= 0, "no driver");
	must(make(0, 0x41, NULL, 0, &client) == NV_OK, "no client");
	device = device_of(&subdevice);
	must(make(device, CLASS_GROUP, NULL, 0, &group) == NV_OK, "no channel group");
	told(subdevice);
	/* As many objects as the simulated driver has room for. */
	while (n < 40 && (status = take(device, n)) == NV_OK)
		n++;
	told(subdevice);
	printf("{\"got_mib\":%llu,\"status\":%u}\n", n * STEP >> 20, status);
	fflush(stdout);
	if (argc > 1)
		sleep((unsigned)atoi(argv[1]));
	f.root = client;
	f.object = device;
	must(ioctl(fd, _IOWR('F', ESC_FREE, struct rm_free), &f) == 0 && f.status == NV_OK,
	     "not freed");
	device = device_of(&subdevice);
	printf("{\"again\":%u}\n", take(device, 0));
	told(subdevice);
	return 0;
}
