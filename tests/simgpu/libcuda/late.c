// SPDX-License-Identifier: Apache-2.0
/*
 * late.c - how late the hosts of the card are.
 *
 * A test that measures work must know what a process could not do because other programs had its
 * processor. Each thread that submits work, or waits for it, reads at most once a millisecond for how long it
 * has waited for a processor. If that is more than LATE_NS since the last time, and nothing of the process is
 * left on a card, the process was late for so long. If the time is shorter, the burst of a limit's budget
 * makes up for it.
 */
#define _GNU_SOURCE
#include "local.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READ_EVERY_NS 1000000
#define LATE_NS 500000

/* Of this thread, since its start; 0 if the kernel does not say it. */
static uint64_t waited_ns(void)
{
	char text[80] = "", *second;
	ssize_t n = 0;
	int fd, cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &cancel); /* no call of the driver ends a thread */
	fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	pthread_setcancelstate(cancel, NULL);
	second = n > 0 ? strchr(text, ' ') : NULL;
	return second ? strtoull(second, NULL, 10) : 0;
}

uint64_t late_ns(void)
{
	static _Thread_local uint64_t read_at, waited;
	uint64_t now = sim_now(), before = waited;
	bool first = !read_at;

	if (drv.proc < 0 || now < read_at + READ_EVERY_NS)
		return 0;
	read_at = now;
	waited = waited_ns();
	/* what a program waits for before its first work is not the card's */
	if (waited < before + LATE_NS || (first && syscall(SYS_gettid) == getpid()))
		return 0;
	return waited - before;
}

void late_count(uint64_t ns)
{
	if (!ns)
		return;
	for (uint32_t i = 0; i < SIM_MAX_CTX; i++)
		if (drv.st->ctx[i].used && drv.st->ctx[i].proc == (uint32_t)drv.proc &&
		    sim_busy(drv.st, i))
			return;
	drv.st->proc[drv.proc].late_ns += ns;
}

/* For programs that print how late they were, by dlsym. */
__attribute__((visibility("default"))) uint64_t simgpu_late_ns(void);
uint64_t simgpu_late_ns(void)
{
	return drv.proc < 0 ? 0
			    : __atomic_load_n(&drv.st->proc[drv.proc].late_ns, __ATOMIC_RELAXED);
}
