/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late.c - the Prolog of a job for which slurmd has run none.
 *
 * slurmd runs Prolog for the first credential of a job that it sees. A job that
 * comes back after a requeue has a new one, and slurmd forgets the old one when
 * it looks through its list, at most every two seconds (seen on 22.05: it logs
 * "reissued job credential"). On a busy node the job is started in between, as
 * one that has had its Prolog. So a task without a grant asks for it here, as
 * Prolog would have done, before it may run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "plugin.h"

#define MOST_VARIABLES 24
#define MOST_BYTES 512
#define EXIT_UNKNOWN 3 /* ExitUnknown of spank/prolog */

struct environment {
	char text[MOST_VARIABLES][MOST_BYTES];
	char *list[MOST_VARIABLES + 1];
	int n;
};

/* A value that is too long is cut: vgpu-prolog takes no longer ones either. */
static void add(struct environment *env, const char *name, const char *value)
{
	if (env->n == MOST_VARIABLES)
		return;
	snprintf(env->text[env->n], MOST_BYTES, "%s=%s", name, value);
	env->list[env->n] = env->text[env->n];
	env->n++;
}

static void fill(struct environment *env, spank_t spank)
{
	static const struct {
		const char *name;
		spank_item_t item;
	} items[] = {{"SLURM_JOB_ID", S_JOB_ID},
		     {"SLURM_JOB_UID", S_JOB_UID},
		     {"SLURM_JOB_GID", S_JOB_GID}};
	/* From the job's environment: the first of the two names that is set. */
	static const char *const variables[][3] = {
		{"SLURM_JOB_USER", "SLURM_JOB_USER"},
		{"SLURM_JOB_ACCOUNT", "SLURM_JOB_ACCOUNT"},
		{"SLURM_JOB_PARTITION", "SLURM_JOB_PARTITION"},
		{"SLURM_JOB_GPUS", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"},
		{"SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"},
#define OPTION(id, ...) {"SPANK_VGPU_" #id, "SLURM_SPANK_VGPU_" #id},
#include "../options/options.def"
#undef OPTION
	};
	char value[MOST_BYTES / 2];
	uint32_t number;
	size_t i, k;

	add(env, "SLURM_SCRIPT_CONTEXT", "vgpu_late_prolog");
	add(env, "PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
	for (i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
		if (spank_get_item(spank, items[i].item, &number) != ESPANK_SUCCESS)
			continue;
		snprintf(value, sizeof(value), "%u", number);
		add(env, items[i].name, value);
	}
	if (getenv("SLURM_CONF"))
		add(env, "SLURM_CONF", getenv("SLURM_CONF"));
	for (i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		for (k = 1; k < 3 && variables[i][k]; k++) {
			if (spank_getenv(spank, variables[i][k], value, sizeof(value)) !=
			    ESPANK_SUCCESS)
				continue;
			add(env, variables[i][0], value);
			break;
		}
	}
}

/* The child of the child: its words go through the pipe. */
static void become(const char *program, struct environment *env, int words)
{
	char *argv[] = {(char *)"vgpu-prolog", NULL};

	if (dup2(words, STDOUT_FILENO) >= 0 && dup2(words, STDERR_FILENO) >= 0)
		execve(program, argv, env->list);
	dprintf(words, "%s: %s", program, strerror(errno));
	_exit(127);
}

/* Where gresd chooses the cards, Slurm tells a task nothing of its job's share; nor where it has
 * lost it. */
bool vgpu_needs_prolog(const char *run_dir, uint32_t job)
{
	return (vgpu_is_there(run_dir, VGPU_GRESD_PLACES) ||
		vgpu_is_there(run_dir, VGPU_LOSES_SHARDS) ||
		vgpu_job_is(run_dir, job, VGPU_UNDECIDED)) &&
	       !vgpu_job_is(run_dir, job, VGPU_NO_SHARE);
}

int vgpu_late_prolog(spank_t spank, const char *program, struct vgpu_why *why)
{
	static struct environment env; /* one task, one call: too large for the stack */
	char said[sizeof(why->text)], clean[sizeof(why->text)];
	int words[2], status = 0;
	pid_t child, ended;

	env.n = 0;
	fill(&env, spank);
	env.list[env.n] = NULL;
	if (pipe2(words, O_CLOEXEC))
		return vgpu_because(why, "run %s: pipe: %s", program, strerror(errno));
	child = fork();
	if (child == 0)
		become(program, &env, words[1]);
	close(words[1]);
	if (child < 0) {
		close(words[0]);
		return vgpu_because(why, "run %s: fork: %s", program, strerror(errno));
	}
	vgpu_read_text(words[0], said, sizeof(said));
	do
		ended = waitpid(child, &status, 0);
	while (ended < 0 && errno == EINTR);
	if (ended != child)
		return vgpu_because(why, "wait for %s: %s", program, strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNKNOWN)
		return 1;
	vgpu_printable(clean, sizeof(clean), said);
	return vgpu_because(why, "%s", clean[0] ? clean : "vgpu-prolog failed without a word");
}
