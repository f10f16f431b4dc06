/* SPDX-License-Identifier: Apache-2.0 */
/* region_process.c - what /proc says of who owns a slot. */
#include "old_strtol.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "region_ops.h"

uint64_t vgpu_pid_ns(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

/* Of a process that has ended and only waits for its parent. */
#define ZOMBIE UINT64_MAX

/* process: a pid, or "self". 0: it cannot be read. */
static uint64_t start_time_of(const char *process)
{
	char path[32], buf[1024], *p;
	bool zombie, alone = false;

	snprintf(path, sizeof path, "/proc/%s/stat", process);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	buf[n > 0 ? n : 0] = 0;
	/* Field 2 is the command in parentheses and may hold anything. */
	p = strrchr(buf, ')');
	zombie = p && strncmp(p, ") Z", 3) == 0;
	for (int field = 3; p && field <= 22; field++) {
		p = strchr(p + 1, ' ');
		if (p && field == 20)
			alone = strtoul(p, NULL, 10) <= 1;
	}
	/* A zombie holds nothing any more; but a first thread that has ended while others run looks
	 * like one. Field 3: state, 20: threads, 22: start. */
	if (zombie && alone)
		return ZOMBIE;
	return p ? strtoull(p, NULL, 10) : 0;
}

/* The namespace bits of the caller's owner words. A /proc of another namespace,
 * or none, cannot say who lives. */
static uint32_t ns_bits(void)
{
	uint64_t ns = vgpu_pid_ns();
	char self[16] = "";

	if (ns == 0 || readlink("/proc/self", self, sizeof self - 1) <= 0 ||
	    strtol(self, NULL, 10) != getpid())
		return VGPU_NS_UNKNOWN;
	return (uint32_t)(ns % VGPU_NS_UNKNOWN);
}

uint64_t vgpu_owner_word(uint32_t ns, uint32_t pid, uint64_t start_time)
{
	return (uint64_t)ns << 54 | (uint64_t)pid << 32 | (uint32_t)start_time;
}

uint64_t vgpu_owner(uint32_t pid, uint64_t start_time)
{
	return vgpu_owner_word(ns_bits(), pid, start_time);
}

struct vgpu_judge vgpu_judge(void)
{
	return (struct vgpu_judge){.ns = ns_bits(), .pid_ns = vgpu_pid_ns()};
}

bool vgpu_same_ns(const struct vgpu_judge *j, const struct vgpu_slot *slot, uint64_t owner)
{
	uint64_t ns = LOAD(&slot->pid_ns);

	/* The bits alone may meet by chance. They are all there is of a slot that is just
	 * being claimed, or cleared by somebody of another namespace, who died of it. */
	return j->ns != VGPU_NS_UNKNOWN && VGPU_OWNER_NS(owner) == j->ns &&
	       (ns == 0 || ns == j->pid_ns || ns % VGPU_NS_UNKNOWN != j->ns);
}

uint64_t vgpu_start_time(uint32_t pid)
{
	char name[16];

	snprintf(name, sizeof name, "%u", pid);
	uint64_t start = start_time_of(pid ? name : "self");
	return start == ZOMBIE ? 0 : start;
}

uint64_t vgpu_own_start_time(void)
{
	return vgpu_start_time(0);
}

/* There is no process with the pid of an owner word of the caller's PID namespace. */
static bool no_process(uint64_t owner)
{
	return kill((pid_t)VGPU_OWNER_PID(owner), 0) != 0 && errno == ESRCH;
}

/* The same start time reads differently in another time namespace. */
static bool same_time_ns(const char *process)
{
	struct stat own, its;
	char path[40];

	/* A kernel without them has one. */
	if (stat("/proc/self/ns/time", &own) != 0)
		return errno == ENOENT;
	snprintf(path, sizeof path, "/proc/%s/ns/time", process);
	return stat(path, &its) == 0 && its.st_ino == own.st_ino;
}

bool vgpu_has_ended(uint64_t owner)
{
	char name[16];

	if (VGPU_OWNER_PID(owner) == 0)
		return true;
	snprintf(name, sizeof name, "%u", VGPU_OWNER_PID(owner));
	errno = 0;
	uint64_t start = start_time_of(name);
	/* A sandbox that denies the file may end a process that calls kill. */
	if (start == 0)
		return errno != EACCES && errno != EPERM && no_process(owner);
	return start == ZOMBIE ||
	       ((uint32_t)owner != 0 && (uint32_t)start != (uint32_t)owner && same_time_ns(name));
}
