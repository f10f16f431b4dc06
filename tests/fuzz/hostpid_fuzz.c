/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostpid_fuzz.c - the messages that the library takes from gresd, over a socket
 * whose path is in the grant: any path, any answer, in any length.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "input.h"

static const uint8_t *answer;
static size_t length;

static int fuzz_connect(int fd, const struct sockaddr *to, socklen_t size)
{
	const char *path = ((const struct sockaddr_un *)to)->sun_path;

	CHECK(fd == 3 && size == sizeof(struct sockaddr_un) && path[0] == '/');
	CHECK(memchr(path, 0, sizeof((struct sockaddr_un *)0)->sun_path));
	return 0;
}

static ssize_t fuzz_recv(int fd, void *to, size_t size, int flags)
{
	(void)flags;
	CHECK(fd == 3);
	size = size < length ? size : length;
	memcpy(to, answer, size);
	return (ssize_t)size;
}

#define socket(domain, type, protocol) 3
#define setsockopt(fd, level, name, value, size) (void)((fd) + (name)), (void)(value)
#define connect fuzz_connect
#define send(fd, text, size, flags) (ssize_t)(size)
#define recv fuzz_recv
#define close(fd) (void)(fd)
#include "../../libvgpu/job/ask.c"
#include "../../libvgpu/memory/ended.c"

struct vgpu_state vgpu_state;

static int steps(clockid_t clock, struct timespec *ts)
{
	static long now;

	now += 1000;
	*ts = (struct timespec){.tv_sec = now / 1000000000, .tv_nsec = now % 1000000000};
	return (int)(clock - CLOCK_MONOTONIC);
}

uint64_t vgpu_mem_used(int card)
{
	return (uint64_t)card;
}

uint64_t vgpu_limit(int card)
{
	return (uint64_t)card;
}

/* Whose ends gresd tells: as many as there is room for, from text of any kind. */
static void ends(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	struct vgpu_ended *told = malloc(sizeof *told);

	CHECK(text && told);
	memcpy(text, data, size);
	text[size] = 0;
	CHECK(read_answer(text, told) == (told->n > 0));
	CHECK(told->n <= VGPU_MAX_ENDED);
	CHECK(!told->n || strstr(text, "\"ended\":["));
	free(text);
	free(told);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.at = data, .left = size};
	struct vgpu_grant *grant = calloc(1, sizeof *grant);
	struct vgpu_slot *slot = calloc(1, sizeof *slot);

	CHECK(grant && slot);
	vgpu_clock = steps;
	slot->pid = 42;
	slot->pid_ns = take(&in, 1) & 1 ? VGPU_FIRST_PID_NS : 7;
	take_bytes(&in, grant->socket, take(&in, 1) % (sizeof grant->socket + 1));
	answer = in.at;
	length = in.left;
	ends(in.at, in.left);
	vgpu_state.grant = grant;
	vgpu_state.slot = slot;
	vgpu_host_pid();
	CHECK(slot->host_pid <= 0x3fffff);
	CHECK(slot->pid_ns != VGPU_FIRST_PID_NS || slot->host_pid == 42);
	CHECK(slot->pid_ns == VGPU_FIRST_PID_NS || grant->socket[0] == '/' || slot->host_pid == 0);
	free(grant);
	free(slot);
	return 0;
}
