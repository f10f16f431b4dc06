/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

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
