/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - the way to stderr, the only one in the library: what every process is told
 * (vgpu_warn), and, where VGPU_LOG_LEVEL (1..4) asks, what it does (vgpu_log).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

#define MAX_LINES 200u
#define LINE 512

void vgpu_signal_hold(struct vgpu_signal_hold *h, int signal)
{
	sigset_t pending;

	sigemptyset(&h->signal);
	sigaddset(&h->signal, signal);
	sigpending(&pending);
	h->had = sigismember(&pending, signal) == 1;
	h->held = pthread_sigmask(SIG_BLOCK, &h->signal, &h->before) == 0;
}

void vgpu_signal_drop(struct vgpu_signal_hold *h, bool raised)
{
	const struct timespec now = {0, 0};
	int saved = errno;

	if (h->held && raised && !h->had)
		sigtimedwait(&h->signal, NULL, &now);
	if (h->held)
		pthread_sigmask(SIG_SETMASK, &h->before, NULL);
	errno = saved;
}

/* What stderr was when the program began. */
static struct stat at_start;

__attribute__((constructor)) VGPU_EARLY static void see_stderr(void)
{
	if (fstat(STDERR_FILENO, &at_start) != 0)
		at_start = (struct stat){0};
}

/* A program that has closed its stderr may have opened a file of its data since, which
 * then has the number. */
static bool is_stderr(void)
{
	struct stat now;

	return fstat(STDERR_FILENO, &now) == 0 &&
	       (!S_ISREG(now.st_mode) ||
		(now.st_dev == at_start.st_dev && now.st_ino == at_start.st_ino));
}

/* A pipe that is full, or that nobody reads, or a file at its largest, must not stop or
 * end the program. Its thread may be cancelled, but not in here: a caller may hold a lock. */
void vgpu_say(const char *text, size_t len)
{
	struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct vgpu_signal_hold pipe, size;
	VGPU_NO_CANCEL;
	int saved = errno;
	ssize_t n;

	if (is_stderr() && poll(&out, 1, 0) == 1 && !(out.revents & (POLLERR | POLLNVAL)) &&
	    (out.revents & POLLOUT)) {
		vgpu_signal_hold(&pipe, SIGPIPE);
		vgpu_signal_hold(&size, SIGXFSZ);
		n = write(STDERR_FILENO, text, len);
		vgpu_signal_drop(&size, n < 0 && errno == EFBIG);
		vgpu_signal_drop(&pipe, n < 0 && errno == EPIPE);
	}
	errno = saved;
}

/* A line, cut to LINE bytes. */
__attribute__((format(printf, 2, 0))) static void print(const char *start, const char *fmt,
							va_list ap)
{
	int saved = errno, n;
	char line[LINE];

	n = snprintf(line, sizeof line, "%s", start);
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	vgpu_say(line, (size_t)n);
	errno = saved;
}

void vgpu_warn(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	print("", fmt, ap);
	va_end(ap);
}

static int wanted;

void vgpu_log_settings(void)
{
	const char *text = getenv("VGPU_LOG_LEVEL");

	STORE(&wanted, text && text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : 0);
}

void vgpu_log(enum vgpu_log_level level, const char *fmt, ...)
{
	static unsigned lines;
	char start[32];
	va_list ap;

	if ((int)level > LOAD(&wanted) || ADD(&lines, 1) > MAX_LINES)
		return;
	snprintf(start, sizeof start, "vgpu: [%d] ", (int)getpid());
	va_start(ap, fmt);
	print(start, fmt, ap);
	va_end(ap);
}
