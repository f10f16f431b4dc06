/* SPDX-License-Identifier: Apache-2.0 */
/* ask.c - a question to gresd, and its answer; see gresd/wire. Takes no lock. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../base/util.h"
#include "ask.h"
#include "job.h"

/* gresd may be busy or stopped: the watcher has other things to do. */
#define PATIENCE_NS 1000000000u
#define PID "\"pid\":"

/* Reads until the end of the line. A signal of the program's may interrupt. */
static bool read_line(int fd, uint64_t until_ns, char *answer, size_t size)
{
	size_t len = 0;

	while (len + 1 < size && vgpu_now() < until_ns) {
		ssize_t n = recv(fd, answer + len, size - 1 - len, 0);

		if (n == 0 || (n < 0 && errno != EINTR))
			return false;
		len += n > 0 ? (size_t)n : 0;
		if (len && answer[len - 1] == '\n') {
			answer[len - 1] = 0;
			return true;
		}
	}
	return false;
}

bool vgpu_ask(const char *question, uint64_t within_ns, char *answer, size_t size)
{
	struct timeval within = {.tv_sec = (time_t)(within_ns / 1000000000u),
				 .tv_usec = (suseconds_t)(within_ns % 1000000000u / 1000)};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	uint64_t until = vgpu_now() + within_ns;
	size_t len = strlen(question);

	_Static_assert(sizeof addr.sun_path > VGPU_SOCKET_LEN, "a socket's path fits");
	memcpy(addr.sun_path, vgpu_state.grant->socket, VGPU_SOCKET_LEN);
	if (addr.sun_path[0] != '/')
		return false;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &within, sizeof within);
	bool ok = connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
		  send(fd, question, len, MSG_NOSIGNAL) == (ssize_t)len &&
		  read_line(fd, until, answer, size);
	close(fd);
	return ok && strstr(answer, "\"ok\":true");
}

void vgpu_host_pid(void)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	unsigned long pid = 0;
	char answer[256], *p = NULL;

	if (slot->pid_ns == VGPU_FIRST_PID_NS)
		pid = slot->pid;
	else if (vgpu_ask("{\"op\":\"ping\"}\n", PATIENCE_NS, answer, sizeof answer))
		p = strstr(answer, PID);
	if (p)
		pid = strtoul(p + strlen(PID), NULL, 10);
	STORE(&slot->host_pid, pid <= 0x3fffff ? (uint32_t)pid : 0);
}
