/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - quiet by default: a line only where VGPU_LOG_LEVEL (1..4) asks. */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "vgpu.h"

#define MAX_LINES 200u

void vgpu_log(enum vgpu_log_level level, const char *fmt, ...)
{
	static int wanted = -1;
	static unsigned lines;
	char line[512];
	va_list ap;
	int n, saved = errno;

	if (wanted < 0) {
		const char *text = getenv("VGPU_LOG_LEVEL");

		wanted = text && text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : 0;
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
	if (write(STDERR_FILENO, line, (size_t)n) < 0) {
		/* nobody to tell */
	}
	errno = saved;
}
#endif
