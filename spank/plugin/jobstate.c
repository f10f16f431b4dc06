/* SPDX-License-Identifier: Apache-2.0 */
/* jobstate.c - files in which gresd describes the node, and the Prolog describes a job, for tasks. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plugin.h"

bool vgpu_is_there(const char *run_dir, const char *name)
{
	char path[256];

	return snprintf(path, sizeof(path), "%s/%s", run_dir, name) < (int)sizeof(path) &&
	       !access(path, F_OK);
}

bool vgpu_job_is(const char *run_dir, uint32_t job, const char *state)
{
	struct vgpu_why why;
	char name[32], word[16];
	int fd;

	snprintf(name, sizeof(name), "state/%u", job);
	fd = vgpu_jobdir_of_node(run_dir, name, &why);
	if (fd < 0)
		return false;
	vgpu_read_text(fd, word, sizeof(word));
	word[strcspn(word, "\n")] = '\0';
	return !strcmp(word, state);
}
