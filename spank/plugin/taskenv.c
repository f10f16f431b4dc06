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
	struct vgpu_member member;
	long shards;  /* slurm's word; the user cannot forge it in slurmstepd */
	bool unknown; /* the job may have lost a share */
};

static int read_task(struct task *task, struct vgpu_why *why)
{
	char shards[32];
	spank_err_t err;

	err = spank_get_item(task->spank, S_JOB_ID, &task->member.job);
	if (err == ESPANK_SUCCESS)
		err = spank_get_item(task->spank, S_JOB_UID, &task->member.uid);
	if (err != ESPANK_SUCCESS)
		return vgpu_because(why, "ask slurm for job and user: %s", spank_strerror(err));
	err = spank_getenv(task->spank, "SLURM_SHARDS_ON_NODE", shards, sizeof(shards));
	task->shards = err == ESPANK_SUCCESS ? strtol(shards, NULL, 10) : 0;
	return 0;
}

/* No grant is right for a job without shards, and for one that has no share although it
 * has the environment of one: sbatch hands that on. A job with shards would have the whole
 * card to itself, so it must not start. */
static int without_grant(const struct task *task, struct vgpu_why *why)
{
	if (task->shards <= 0 ||
	    vgpu_job_is(task->member.config->run_dir, task->member.job, VGPU_NO_SHARE))
		return 0;
	return vgpu_because(why,
			    "%ld shards, but no grant on this node: is Prolog=vgpu-prolog in "
			    "slurm.conf, and gresd well (vgpuctl status)?",
			    task->shards);
}

/* The library goes first, the user's own LD_PRELOAD stays behind it. */
static int set_preload(const struct task *task, struct vgpu_why *why)
{
	const char *library = task->member.config->library;
	char own[4096], both[sizeof(own) + 512];
	spank_err_t err;

	err = spank_getenv(task->spank, "LD_PRELOAD", own, sizeof(own));
	if (err == ESPANK_NOSPACE)
		return vgpu_because(why, "LD_PRELOAD: longer than %zu bytes", sizeof(own));
	if (err != ESPANK_SUCCESS || !own[0])
		return vgpu_setenv(task->spank, "LD_PRELOAD", library, why);
	if (strstr(own, library))
		return 0;
	if (snprintf(both, sizeof(both), "%s:%s", library, own) >= (int)sizeof(both))
		return vgpu_because(why, "LD_PRELOAD: longer than %zu bytes", sizeof(both));
	return vgpu_setenv(task->spank, "LD_PRELOAD", both, why);
}

static int set_environment(const struct task *task, struct vgpu_why *why)
{
	static const char *const files[][2] = {{"VGPU_GRANT", "grant"}, {"VGPU_CACHE", "cache"}};
	const char *run_dir = task->member.config->run_dir;
	char path[256];
	size_t i;

	for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		if (snprintf(path, sizeof(path), "%s/jobs/%u/%s", run_dir, task->member.job,
			     files[i][1]) >= (int)sizeof(path))
			return vgpu_because(why, "run_dir=%s: path too long", run_dir);
		if (vgpu_setenv(task->spank, files[i][0], path, why))
			return -1;
	}
	return set_preload(task, why);
}

static int enforce(const struct task *task, bool granted, struct vgpu_why *why)
{
	const struct vgpu_config *config = task->member.config;

	if (config->enforce == VGPU_ENFORCE_PRELOAD)
		return granted ? set_environment(task, why) : 0;
	if (config->enforce == VGPU_ENFORCE_OFF)
		return 0;
	if (granted)
		return vgpu_member_enter(&task->member, why);
	if (task->unknown || vgpu_job_is(config->run_dir, task->member.job, VGPU_UNDECIDED))
		return vgpu_member_hide_cards(why);
	return 0;
}

/* What is the same for all tasks of a step: 1 when there are limits to enforce,
 * 0 when there are none, -1 when the step must not run. */
static int admit(struct task *task, struct vgpu_why *why)
{
	const struct vgpu_config *config = task->member.config;
	struct vgpu_why late = {""};
	int known, asked = 0;

	if (config->wrong.text[0])
		return task->shards > 0
			       ? vgpu_because(why, "plugstack.conf: %s", config->wrong.text)
			       : 0;
	known = vgpu_member_admit(&task->member, why);
	if (known == 0 &&
	    (task->shards > 0 || vgpu_needs_prolog(config->run_dir, task->member.job))) {
		asked = vgpu_late_prolog(task->spank, config->prolog, &late);
		if (asked < 0)
			return vgpu_because(why, "no grant: %s", late.text);
		known = vgpu_member_admit(&task->member, why);
	}
	task->unknown = asked > 0;
	return known == 0 ? without_grant(task, why) : known;
}

/* A refusal comes from gresd and begins with vgpu: already. Slurm ignores a
 * failure of an optional plugin, and the task would run without limits: this
 * process is the task and nothing else, so end it. */
static void give_up(const struct task *task, const struct vgpu_why *why, bool quiet)
{
	if (quiet)
		slurm_verbose("vgpu: task: job %u: %s", task->member.job, why->text);
	else if (!strncmp(why->text, "vgpu:", 5))
		slurm_error("%s", why->text);
	else
		slurm_error("vgpu: task: job %u: %s", task->member.job, why->text);
	_exit(1);
}

/* Returns only when the task may start. */
void vgpu_task_prepare(spank_t spank, const struct vgpu_config *config)
{
	struct task task = {.spank = spank, .member = {.config = config}};
	struct vgpu_why why = {""};
	int id = 0, admitted;

	if (read_task(&task, &why))
		give_up(&task, &why, false);
	spank_get_item(spank, S_TASK_ID, &id);
	admitted = admit(&task, &why);
	if (admitted < 0) /* said once on each node, not by every task */
		give_up(&task, &why, id != 0);
	if (enforce(&task, admitted, &why))
		give_up(&task, &why, false);
}

/* As the user, after slurm has set its own variables. Returns only when the
 * task may start: without them it would start without its limits. */
void vgpu_task_environment(spank_t spank, const struct vgpu_config *config)
{
	struct task task = {.spank = spank, .member = {.config = config}};
	struct vgpu_why why = {""};

	if (config->wrong.text[0] || config->enforce == VGPU_ENFORCE_OFF)
		return;
	if (vgpu_jobenv_set(spank, config->run_dir, &why) == 0)
		return;
	spank_get_item(spank, S_JOB_ID, &task.member.job);
	give_up(&task, &why, false);
}
