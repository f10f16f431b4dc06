/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostpid.c - which pid this process has outside its PID namespace. It cannot
 * find that out by itself, and needs it for nothing; monitors that read the cache
 * file do. gresd reads it off the socket's credentials.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "vgpu.h"

/* What the kernel numbers the first PID namespace (PROC_PID_INIT_INO). */
#define FIRST_PID_NS 0xEFFFFFFCu
#define PING "{\"op\":\"ping\"}\n"

/* gresd's answer to a ping, a JSON line; 0 when there is none. */
static uint32_t pid_in(const char *answer)
{
	const char *p = strstr(answer, "\"pid\":");
	unsigned long pid = p ? strtoul(p + strlen("\"pid\":"), NULL, 10) : 0;

	return pid <= 0x3fffff ? (uint32_t)pid : 0;
}

static uint32_t ask(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval soon = {.tv_sec = 1};
	char answer[256];
	ssize_t n = -1;
	int fd;

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
	/* gresd may be busy or stopped: the watcher has other things to do. */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
	if (connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
	    send(fd, PING, strlen(PING), MSG_NOSIGNAL) == (ssize_t)strlen(PING))
		n = recv(fd, answer, sizeof answer - 1, 0);
	close(fd);
	if (n <= 0)
		return 0;
	answer[n] = 0;
	return pid_in(answer);
}

void vgpu_host_pid(void)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	char path[VGPU_SOCKET_LEN + 1] = "";
	uint32_t pid;

	if (slot->pid_ns == FIRST_PID_NS) {
		pid = slot->pid;
	} else {
		memcpy(path, vgpu_state.grant->socket, VGPU_SOCKET_LEN);
		pid = path[0] == '/' ? ask(path) : 0;
	}
	__atomic_store_n(&slot->host_pid, pid, __ATOMIC_SEQ_CST);
}
#endif
