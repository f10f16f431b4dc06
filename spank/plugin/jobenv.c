/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobenv.c - variables that gresd wants the task to have, beside its limits: a
 * client of MPS finds its daemon by them.
 *
 * They are set as late as a plugin can, in task_init: CUDA_VISIBLE_DEVICES is
 * among them, and slurm sets its own after task_init_privileged.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "plugin.h"

#define MOST_BYTES 4096

static int read_lines(const char *run_dir, uint32_t job, char *text, struct vgpu_why *why)
{
	int dir = vgpu_jobdir_open(run_dir, job, why), fd;
	ssize_t n;

	if (dir < 0)
		return dir;
	fd = vgpu_jobdir_environment(dir, why);
	close(dir);
	if (fd < 0)
		return fd;
	n = read(fd, text, MOST_BYTES);
	close(fd);
	if (n < 0)
		return vgpu_because(why, "environment: read: %s", strerror(errno));
	if (n == MOST_BYTES)
		return vgpu_because(why, "environment: %d bytes or more: is it from gresd?",
				    MOST_BYTES);
	text[n] = '\0';
	return 0;
}

/* 0, also where there is nothing to set; -1 with *why set. */
int vgpu_jobenv_set(spank_t spank, const char *run_dir, struct vgpu_why *why)
{
	char text[MOST_BYTES], *rest = text, *line;
	uint32_t job;
	int err;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return vgpu_because(why, "ask slurm for the job");
	err = read_lines(run_dir, job, text, why);
	if (err == -ENOENT)
		return 0;
	while (!err && (line = strsep(&rest, "\n"))) {
		char *value = strchr(line, '=');
		spank_err_t set;

		if (!value)
			continue;
		*value++ = '\0';
		set = spank_setenv(spank, line, value, 1);
		if (set != ESPANK_SUCCESS)
			err = vgpu_because(why, "set %s: %s", line, spank_strerror(set));
	}
	return err;
}
