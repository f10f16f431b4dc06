/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobenv.c - variables that gresd wants the task to have, beside its limits: a
 * client of MPS finds its daemon by them. A line is NAME=VALUE, or NAME/tasks=N: a
 * whole number that the tasks of a step on this node have together, at least 1 each.
 *
 * They are set as late as a plugin can, in task_init: CUDA_VISIBLE_DEVICES is
 * among them, and slurm sets its own after task_init_privileged.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "plugin.h"

#define MOST_BYTES 4096
#define NO_CARD "NoDevFiles" /* Slurm's own word in CUDA_VISIBLE_DEVICES */
#define PER_TASK "/tasks"

/* -ENOENT for a job without a share. */
static int read_lines(const char *run_dir, uint32_t job, char *text, struct vgpu_why *why)
{
	int dir = vgpu_jobdir_open(run_dir, job, why), fd;
	ssize_t n;

	if (dir < 0)
		return dir;
	fd = vgpu_jobdir_environment(dir, why);
	close(dir);
	text[0] = '\0';
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	n = vgpu_read_text(fd, text, MOST_BYTES);
	if (n < 0)
		return vgpu_because(why, "environment: read: %s", strerror(errno));
	if (n == MOST_BYTES - 1)
		return vgpu_because(why, "environment: %d bytes or more: is it from gresd?",
				    MOST_BYTES - 1);
	return 0;
}

int vgpu_setenv(spank_t spank, const char *name, const char *value, struct vgpu_why *why)
{
	spank_err_t err = spank_setenv(spank, name, value, 1);

	if (err != ESPANK_SUCCESS)
		return vgpu_because(why, "set %s: %s", name, spank_strerror(err));
	return 0;
}

/* Sets what one line says, and changes the line. */
static int set_line(spank_t spank, char *line, struct vgpu_why *why)
{
	char *value = strchr(line, '='), *tasks, part[24];
	uint32_t count = 1;
	unsigned long n;

	if (!value)
		return 0;
	*value++ = '\0';
	tasks = strstr(line, PER_TASK);
	if (!tasks || tasks[strlen(PER_TASK)])
		return vgpu_setenv(spank, line, value, why);
	*tasks = '\0';
	if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &count) != ESPANK_SUCCESS)
		return vgpu_because(why, "ask slurm for the tasks of the step");
	n = strtoul(value, NULL, 10) / (count > 1 ? count : 1);
	snprintf(part, sizeof(part), "%lu", n > 1 ? n : 1);
	return vgpu_setenv(spank, line, part, why);
}

/* Whether Slurm gave the step neither cards nor shards, as with --gres=none. Where
 * gresd chooses the cards it never does, and nothing tells such a step. */
static bool is_without_cards(spank_t spank, const char *run_dir)
{
	static const char *const told[] = {"SLURM_SHARDS_ON_NODE", "SLURM_GPUS_ON_NODE",
					   "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"};
	char value[64];
	size_t i;

	for (i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
		if (spank_getenv(spank, told[i], value, sizeof(value)) != ESPANK_ENV_NOEXIST)
			return false;
	}
	return !vgpu_is_there(run_dir, VGPU_GRESD_PLACES);
}

/* See whole.c. */
static int set_whole(spank_t spank, const char *run_dir, struct vgpu_why *why)
{
	char names[MOST_BYTES], indexes[1024], visible[1024], out[MOST_BYTES];
	int fd = vgpu_jobdir_of_node(run_dir, "cards", why);

	if (fd < 0) /* also what cannot be believed: the job is not gresd's */
		return 0;
	vgpu_read_text(fd, names, sizeof(names));
	if ((spank_getenv(spank, "SLURM_STEP_GPUS", indexes, sizeof(indexes)) != ESPANK_SUCCESS &&
	     spank_getenv(spank, "SLURM_JOB_GPUS", indexes, sizeof(indexes)) != ESPANK_SUCCESS) ||
	    spank_getenv(spank, "CUDA_VISIBLE_DEVICES", visible, sizeof(visible)) !=
		    ESPANK_SUCCESS ||
	    !vgpu_whole_names(names, indexes, visible, out, sizeof(out)))
		return 0;
	return vgpu_setenv(spank, "CUDA_VISIBLE_DEVICES", out, why);
}

/* 0, also where there is nothing to set; -1 with *why set. A step without cards
 * gets none: with no word at all CUDA would show it every card of the node. */
int vgpu_jobenv_set(spank_t spank, const char *run_dir, struct vgpu_why *why)
{
	char text[MOST_BYTES], *rest = text, *line;
	uint32_t job;
	bool denied;
	int err;

	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return vgpu_because(why, "ask slurm for the job");
	err = read_lines(run_dir, job, text, why);
	if (err == -ENOENT && vgpu_needs_prolog(run_dir, job) && is_without_cards(spank, run_dir))
		return vgpu_setenv(spank, "CUDA_VISIBLE_DEVICES", NO_CARD, why); /* nobody knew */
	if (err == -ENOENT)
		return set_whole(spank, run_dir, why);
	denied = is_without_cards(spank, run_dir); /* before gresd's words are set */
	while (!err && (line = strsep(&rest, "\n")))
		err = set_line(spank, line, why);
	return !err && denied ? vgpu_setenv(spank, "CUDA_VISIBLE_DEVICES", NO_CARD, why) : err;
}
