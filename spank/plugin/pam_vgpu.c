/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pam_vgpu.so - puts a session that pam_slurm_adopt has adopted into a job
 * behind the grant of that job, as the plugin does with the job's tasks. In the
 * session stack of sshd, which opens a session as root in the process that the
 * user's processes come from. Takes the plugin's arguments: run_dir=, seccomp=.
 */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include <security/pam_ext.h>
#include <security/pam_modules.h>

#include "plugin.h"

/* The job of ".../job_7/step_extern" in a line of /proc/self/cgroup; 0: none. */
static uint32_t job_of(const char *line)
{
	const char *at = strstr(line, "/job_");
	unsigned long job;
	char *end;

	if (!at)
		return 0;
	job = strtoul(at + strlen("/job_"), &end, 10);
	return (*end == '/' || *end == '\n') && job <= UINT32_MAX ? (uint32_t)job : 0;
}

/* By the cgroup, which the user cannot change; where Slurm has none of its own,
 * by what pam_slurm_adopt has told PAM. 0: this is no session of a job. */
static uint32_t adopted_into(pam_handle_t *pam)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	const char *told;
	char line[4096];
	uint32_t job = 0;

	while (file && !job && fgets(line, sizeof(line), file))
		job = job_of(line);
	if (file)
		fclose(file);
	told = pam_getenv(pam, "SLURM_JOB_ID");
	return job || !told ? job : (uint32_t)strtoul(told, NULL, 10);
}

static int refuse(pam_handle_t *pam, uint32_t job, const struct vgpu_why *why)
{
	bool complete = !strncmp(why->text, "vgpu:", 5); /* gresd's own line */

	if (complete)
		pam_error(pam, "%s", why->text);
	else
		pam_error(pam, "vgpu: session: job %u: %s", job, why->text);
	pam_syslog(pam, LOG_ERR, "vgpu: session: job %u: %s", job, why->text);
	return PAM_SESSION_ERR;
}

int pam_sm_open_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
	struct vgpu_why why = {""};
	struct vgpu_config config;
	struct vgpu_member member = {.config = &config, .job = adopted_into(pam)};
	const char *name = NULL;
	struct passwd *user;

	(void)flags;
	if (!member.job || pam_get_user(pam, &name, NULL) != PAM_SUCCESS)
		return PAM_SUCCESS;
	user = getpwnam(name);
	if (!user || user->pw_uid == 0)
		return PAM_SUCCESS;
	member.uid = user->pw_uid;
	vgpu_config_read(&config, argc, (char **)argv);
	switch (vgpu_member_admit(&member, &why)) {
	case 0: /* a job without a share */
		return vgpu_job_is(config.run_dir, member.job, VGPU_UNDECIDED) &&
				       vgpu_member_hide_cards(&why)
			       ? refuse(pam, member.job, &why)
			       : PAM_SUCCESS;
	case 1:
		break;
	default:
		return refuse(pam, member.job, &why);
	}
	if (config.wrong.text[0])
		return refuse(pam, member.job, &config.wrong);
	return vgpu_member_enter(&member, &why) ? refuse(pam, member.job, &why) : PAM_SUCCESS;
}

/* The namespace ends with the last process of the session. */
int pam_sm_close_session(pam_handle_t *pam, int flags, int argc, const char **argv)
{
	(void)pam;
	(void)flags;
	(void)argc;
	(void)argv;
	return PAM_SUCCESS;
}
