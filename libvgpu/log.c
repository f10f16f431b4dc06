/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - the way to stderr, the only one in the library: what every process is told
 * (vgpu_warn), and, where VGPU_LOG_LEVEL (1..4) asks, what it does (vgpu_log).
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "vgpu.h"

#define MAX_LINES 200u
#define LINE 512

/* A pipe that is full, or that nobody reads, must not stop or end the program. */
void vgpu_say(const char *text, size_t len)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	const struct timespec now = {0, 0};
	sigset_t pipe_signal, before, pending;
	int had, saved = errno;

	if (poll(&out, 1, 0) != 1 || (out.revents & (POLLERR | POLLNVAL)) ||
	    !(out.revents & POLLOUT))
		goto out;
	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	sigpending(&pending);
	had = sigismember(&pending, SIGPIPE);
	if (pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) != 0)
		goto out;
	if (write(STDERR_FILENO, text, len) < 0 && errno == EPIPE && had != 1)
		sigtimedwait(&pipe_signal, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
out:
	errno = saved;
}

void vgpu_warn(const char *fmt, ...)
{
	int saved = errno, n;
	char line[LINE];
	va_list ap;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof line - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	if (n > 0) {
		line[n++] = '\n';
		vgpu_say(line, (size_t)n);
	}
	errno = saved;
}

void vgpu_log(enum vgpu_log_level level, const char *fmt, ...)
{
	static int asked = -1;
	static unsigned lines;
	char line[LINE];
	va_list ap;
	int n, wanted = __atomic_load_n(&asked, __ATOMIC_RELAXED), saved = errno;

	if (wanted < 0) {
		const char *text = getenv("VGPU_LOG_LEVEL");

		wanted = text && text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : 0;
		__atomic_store_n(&asked, wanted, __ATOMIC_RELAXED);
	}
	if ((int)level > wanted || __atomic_add_fetch(&lines, 1, __ATOMIC_RELAXED) > MAX_LINES)
		return;
	n = snprintf(line, sizeof line, "vgpu: [%d] ", (int)getpid());
	va_start(ap, fmt);
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	vgpu_say(line, (size_t)n);
	errno = saved;
}
#endif
