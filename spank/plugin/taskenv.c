/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs as root in the forked child that becomes the task, after it has joined
 * the job's cgroup and before it changes to the user. A failure here fails the
 * task with a message to its user, and leaves the node alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "plugin.h"

struct task {
	spank_t spank;
	const struct vgpu_config *config;
	uint32_t job;
	uid_t uid;
	long shards; /* slurm's word; the user cannot forge it in slurmstepd */
};

static int read_task(struct task *task, struct vgpu_why *why)
{
	char shards[32];
	spank_err_t err;

	err = spank_get_item(task->spank, S_JOB_ID, &task->job);
	if (err == ESPANK_SUCCESS)
		err = spank_get_item(task->spank, S_JOB_UID, &task->uid);
	if (err != ESPANK_SUCCESS)
		return vgpu_because(why, "ask slurm for job and user: %s", spank_strerror(err));
	err = spank_getenv(task->spank, "SLURM_SHARDS_ON_NODE", shards, sizeof(shards));
	task->shards = err == ESPANK_SUCCESS ? strtol(shards, NULL, 10) : 0;
	return 0;
}

/* No grant is right for a job without shards. A job with shards would have the
 * whole card to itself, so it must not start. */
static int without_grant(const struct task *task, struct vgpu_why *why)
{
	if (task->shards <= 0)
		return 0;
	return vgpu_because(why,
			    "%ld shards, but no grant on this node: is Prolog=vgpu-prolog in "
			    "slurm.conf, and gresd running (systemctl status gresd)?",
			    task->shards);
}

static int open_grant(const struct task *task, int dir, struct vgpu_why *why)
{
	int fd = vgpu_jobdir_grant(dir, task->job, task->uid, why);

	if (fd == -ENOENT)
		return vgpu_because(why, "grant: vanished while the task was starting");
	return fd;
}

static int open_cache(const struct task *task, int dir, struct vgpu_why *why)
{
	int fd = vgpu_jobdir_cache(dir, task->uid, why);

	if (fd == -ENOENT)
		return vgpu_because(why, "cache: missing beside the grant: see the log of gresd");
	return fd;
}

static int open_preload(const struct task *task, int dir, struct vgpu_why *why)
{
	int fd = vgpu_jobdir_preload(task->config->run_dir, why);

	(void)dir;
	if (fd == -ENOENT)
		return vgpu_because(why,
				    "%s/preload: missing: gresd makes it when it starts: see "
				    "systemctl status gresd",
				    task->config->run_dir);
	return fd;
}

static const struct {
	int (*open)(const struct task *task, int dir, struct vgpu_why *why);
	const char *target;
	bool writable;
} binds[] = {
	{open_grant, VGPU_SELF_GRANT, false},
	{open_cache, VGPU_SELF_CACHE, true},
	{open_preload, VGPU_PRELOAD, false},
};

/* Opens everything again: a file that was opened before the namespace was
 * entered belongs to the old one and cannot be bound in the new. */
static int enter_namespace(const struct task *task, struct vgpu_why *why)
{
	int dir, fd, err = 0;
	size_t i;

	if (vgpu_mount_private(why))
		return -1;
	dir = vgpu_jobdir_open(task->config->run_dir, task->job, why);
	if (dir == -ENOENT)
		return vgpu_because(why, "job directory: vanished while the task was starting");
	if (dir < 0)
		return -1;
	for (i = 0; !err && i < sizeof(binds) / sizeof(binds[0]); i++) {
		fd = binds[i].open(task, dir, why);
		if (fd < 0) {
			err = -1;
			break;
		}
		err = vgpu_mount_file(fd, binds[i].target, binds[i].writable, why);
		close(fd);
	}
	close(dir);
	if (!err && task->config->seccomp)
		err = vgpu_seccomp_no_user_namespaces(why);
	return err;
}

static int set_variable(const struct task *task, const char *name, const char *value,
			struct vgpu_why *why)
{
	spank_err_t err = spank_setenv(task->spank, name, value, 1);

	if (err != ESPANK_SUCCESS)
		return vgpu_because(why, "set %s: %s", name, spank_strerror(err));
	return 0;
}

/* The library goes first, the user's own LD_PRELOAD stays behind it. */
static int set_preload(const struct task *task, struct vgpu_why *why)
{
	const char *library = task->config->library;
	char own[4096], both[sizeof(own) + 512];
	spank_err_t err;

	err = spank_getenv(task->spank, "LD_PRELOAD", own, sizeof(own));
	if (err == ESPANK_NOSPACE)
		return vgpu_because(why, "LD_PRELOAD: longer than %zu bytes", sizeof(own));
	if (err != ESPANK_SUCCESS || !own[0])
		return set_variable(task, "LD_PRELOAD", library, why);
	if (strstr(own, library))
		return 0;
	if (snprintf(both, sizeof(both), "%s:%s", library, own) >= (int)sizeof(both))
		return vgpu_because(why, "LD_PRELOAD: longer than %zu bytes", sizeof(both));
	return set_variable(task, "LD_PRELOAD", both, why);
}

static int set_environment(const struct task *task, struct vgpu_why *why)
{
	char path[256];
	size_t i;
	static const char *const files[][2] = {{"VGPU_GRANT", "grant"}, {"VGPU_CACHE", "cache"}};

	for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		if (snprintf(path, sizeof(path), "%s/jobs/%u/%s", task->config->run_dir, task->job,
			     files[i][1]) >= (int)sizeof(path))
			return vgpu_because(why, "run_dir=%s: path too long",
					    task->config->run_dir);
		if (set_variable(task, files[i][0], path, why))
			return -1;
	}
	return set_preload(task, why);
}

static int enforce(const struct task *task, struct vgpu_why *why)
{
	switch (task->config->enforce) {
	case VGPU_ENFORCE_NAMESPACE:
		return enter_namespace(task, why);
	case VGPU_ENFORCE_PRELOAD:
		return set_environment(task, why);
	case VGPU_ENFORCE_OFF:
		break;
	}
	return 0;
}

/* What is the same for all tasks of a step: 1 when there are limits to enforce,
 * 0 when there are none, -1 when the step must not run. */
static int admit(const struct task *task, struct vgpu_why *why)
{
	int dir, fd;
	bool refused;

	if (task->config->wrong.text[0])
		return task->shards > 0
			       ? vgpu_because(why, "plugstack.conf: %s", task->config->wrong.text)
			       : 0;
	dir = vgpu_jobdir_open(task->config->run_dir, task->job, why);
	if (dir == -ENOENT)
		return without_grant(task, why);
	if (dir < 0)
		return -1;
	refused = vgpu_jobdir_refused(dir, why);
	fd = refused ? -1 : vgpu_jobdir_grant(dir, task->job, task->uid, why);
	close(dir);
	if (fd == -ENOENT)
		return without_grant(task, why);
	if (fd < 0)
		return -1;
	close(fd);
	return 1;
}

/* A refusal comes from gresd and begins with vgpu: already. Slurm ignores a
 * failure of an optional plugin, and the task would run without limits: this
 * process is the task and nothing else, so end it. */
static void give_up(const struct task *task, const struct vgpu_why *why, bool quiet)
{
	if (quiet)
		slurm_verbose("vgpu: task: job %u: %s", task->job, why->text);
	else if (!strncmp(why->text, "vgpu:", 5))
		slurm_error("%s", why->text);
	else
		slurm_error("vgpu: task: job %u: %s", task->job, why->text);
	_exit(1);
}

/* Returns only when the task may start. */
void vgpu_task_prepare(spank_t spank, const struct vgpu_config *config)
{
	struct task task = {.spank = spank, .config = config};
	struct vgpu_why why = {""};
	int id = 0, admitted;

	if (read_task(&task, &why))
		give_up(&task, &why, false);
	spank_get_item(spank, S_TASK_ID, &id);
	admitted = admit(&task, &why);
	if (admitted < 0) /* said once on each node, not by every task */
		give_up(&task, &why, id != 0);
	if (admitted > 0 && enforce(&task, &why))
		give_up(&task, &why, false);
}

/* As the user, after slurm has set its own variables. Returns only when the
 * task may start: without them it would start without its limits. */
void vgpu_task_environment(spank_t spank, const struct vgpu_config *config)
{
	struct task task = {.spank = spank, .config = config};
	struct vgpu_why why = {""};

	if (config->wrong.text[0] || config->enforce == VGPU_ENFORCE_OFF)
		return;
	if (vgpu_jobenv_set(spank, config->run_dir, &why) == 0)
		return;
	spank_get_item(spank, S_JOB_ID, &task.job);
	give_up(&task, &why, false);
}
