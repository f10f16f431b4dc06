/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "plugin.h"

/* Returns -1, so that a check can end with return vgpu_because(...). */
int vgpu_because(struct vgpu_why *why, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why->text, sizeof(why->text), format, args);
	va_end(args);
	return -1;
}

/* Copies text up to the first line break, with '?' for other control
 * characters: what a user typed must not forge a second log line. */
void vgpu_printable(char *out, size_t size, const char *text)
{
	size_t i;

	for (i = 0; i + 1 < size && text[i] && text[i] != '\n'; i++)
		out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
	out[i] = '\0';
}

ssize_t vgpu_read_text(int fd, char *text, size_t size)
{
	size_t have = 0;
	ssize_t n = 1;

	while (n && have + 1 < size) {
		n = read(fd, text + have, size - 1 - have);
		if (n < 0 && errno != EINTR)
			break;
		have += n > 0 ? (size_t)n : 0;
	}
	text[have] = '\0';
	close(fd);
	return n < 0 ? -1 : (ssize_t)have;
}
