/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pam_fuzz.c - the job that a session was adopted into, by /proc/self/cgroup, in which
 * users name folders below their job's: the first of a line counts, and where none is
 * read the session is of no job.
 */
#define _GNU_SOURCE
#include <pwd.h>
#include <stdio.h>

#include "input.h"

static char *cgroup;
static size_t length;
static const char *told;
static unsigned admitted;
static uint32_t job_seen;

static FILE *fuzz_fopen(const char *path, const char *mode)
{
	CHECK(!strcmp(path, "/proc/self/cgroup"));
	return length ? fmemopen(cgroup, length, mode[0] == 'r' ? "r" : mode) : NULL;
}

static struct passwd *fuzz_getpwnam(const char *name)
{
	static struct passwd user = {.pw_uid = 1000};

	return *name ? &user : NULL;
}

#define fopen fuzz_fopen
#define getpwnam fuzz_getpwnam
#include "../../spank/plugin/pam_vgpu.c"

const char *pam_getenv(pam_handle_t *pam, const char *name)
{
	(void)pam;
	CHECK(!strcmp(name, "SLURM_JOB_ID"));
	return told;
}

int pam_get_user(pam_handle_t *pam, const char **user, const char *prompt)
{
	(void)pam;
	(void)prompt;
	*user = "ada";
	return PAM_SUCCESS;
}

int pam_prompt(pam_handle_t *pam, int style, char **response, const char *format, ...)
{
	(void)pam;
	(void)style;
	(void)response;
	(void)format;
	return PAM_SUCCESS;
}

void pam_syslog(const pam_handle_t *pam, int priority, const char *format, ...)
{
	(void)pam;
	(void)priority;
	(void)format;
}

int vgpu_member_admit(const struct vgpu_member *member, struct vgpu_why *why)
{
	(void)why;
	CHECK(member->uid == 1000 && member->job);
	admitted++;
	job_seen = member->job;
	return 0;
}

int vgpu_member_enter(const struct vgpu_member *member, struct vgpu_why *why)
{
	(void)member;
	(void)why;
	return 0;
}

int vgpu_member_hide_cards(struct vgpu_why *why)
{
	(void)why;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.at = data, .left = size};
	char want[32], *end;

	told = take(&in, 1) & 1 ? take_text(&in) : NULL;
	length = in.left;
	cgroup = malloc(length + 1);
	CHECK(cgroup != NULL);
	memcpy(cgroup, in.at, length);
	cgroup[length] = '\0';
	admitted = 0;
	CHECK(pam_sm_open_session((pam_handle_t *)(void *)want, 0, 0, NULL) == PAM_SUCCESS &&
	      admitted <= 1);
	if (admitted && !told) {
		/* strtoul takes signs and leading zeros; Slurm writes neither */
		end = memmem(cgroup, length, "/job_", 5);
		CHECK(end != NULL);
		snprintf(want, sizeof want, "%u", job_seen);
		CHECK(memmem(cgroup, length, want, strlen(want)) ||
		      memmem(cgroup, length, "/job_-", 6));
	}
	free(cgroup);
	give_back(&in);
	return 0;
}
