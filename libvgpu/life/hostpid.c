/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostpid.c - which pid this process has outside its PID namespace. It cannot
 * find that out by itself, and needs it for nothing; monitors that read the cache
 * file do. gresd reads it off the socket's credentials.
 */
#include <stdlib.h>
#include <string.h>

#include "../job/ask.h"
#include "../job/job.h"
#include "hostpid.h"

#define PING "{\"op\":\"ping\"}\n"
/* gresd may be busy or stopped: the watcher has other things to do. */
#define PATIENCE_NS 1000000000u

/* gresd's answer to a ping, a JSON line; 0 when there is none. */
static uint32_t pid_in(const char *answer)
{
	const char *p = strstr(answer, "\"pid\":");
	unsigned long pid = p ? strtoul(p + strlen("\"pid\":"), NULL, 10) : 0;

	return pid <= 0x3fffff ? (uint32_t)pid : 0;
}

void vgpu_host_pid(void)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	uint32_t pid = 0;
	char answer[256];

	if (slot->pid_ns == VGPU_FIRST_PID_NS)
		pid = slot->pid;
	else if (vgpu_ask(PING, PATIENCE_NS, answer, sizeof answer))
		pid = pid_in(answer);
	STORE(&slot->host_pid, pid);
}
