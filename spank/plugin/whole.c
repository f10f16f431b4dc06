/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole.c - jobs that have whole cards from Slurm (gres/gpu), on a node where some cards are
 * MIG instances: Slurm numbers these as cards, CUDA does not. There gresd leaves a file with
 * the names of all cards, and the task gets those of its own.
 *
 * A step of several cards whose tasks have some of them each (--gpus-per-task) keeps Slurm's
 * numbers: what they count depends on the device cgroup.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define MOST_BYTES 4096

/* Adds the name of one card. */
static bool add_name(const char *names, unsigned long index, char *out, size_t size)
{
	size_t have = strlen(out);
	unsigned long number;
	char uuid[64];
	int used;

	for (; sscanf(names, "%lu %63s%n", &number, uuid, &used) == 2; names += used)
		if (number == index)
			return snprintf(out + have, size - have, "%s%s", have ? "," : "", uuid) <
			       (int)(size - have);
	return false;
}

bool vgpu_whole_names(const char *names, const char *indexes, const char *visible, char *out,
		      size_t size)
{
	char *end;

	out[0] = '\0';
	if (!isdigit((unsigned char)visible[0]))
		return false;
	/* As many indexes as cards are visible. */
	for (;; indexes = end + 1, visible++) {
		unsigned long index = strtoul(indexes, &end, 10);

		if (end == indexes || !add_name(names, index, out, size))
			return false;
		visible = strchr(visible, ',');
		if (*end != ',' || !visible)
			return !*end && !visible;
	}
}
