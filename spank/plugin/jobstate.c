/* SPDX-License-Identifier: Apache-2.0 */
/* jobstate.c - files in which gresd describes the node, and the Prolog describes a job, for tasks. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plugin.h"

static bool is_there(const char *run_dir, const char *name)
{
	char path[256];

	return snprintf(path, sizeof(path), "%s/%s", run_dir, name) < (int)sizeof(path) &&
	       !access(path, F_OK);
}

bool vgpu_is_placed_by_gresd(const char *run_dir)
{
	return is_there(run_dir, "ask-gresd");
}

bool vgpu_may_lose_shards(const char *run_dir)
{
	return is_there(run_dir, "loses-shards");
}

/* spank/prolog/state.go defines the words. */
static bool has_state(const char *run_dir, uint32_t job, const char *state)
{
	struct vgpu_why why;
	char name[32], word[16];
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "state/%u", job);
	fd = vgpu_jobdir_of_node(run_dir, name, &why);
	if (fd < 0)
		return false;
	n = read(fd, word, sizeof(word) - 1);
	close(fd);
	word[n > 0 ? n : 0] = '\0';
	word[strcspn(word, "\n")] = '\0';
	return !strcmp(word, state);
}

bool vgpu_job_has_no_share(const char *run_dir, uint32_t job)
{
	return has_state(run_dir, job, "no-share");
}

bool vgpu_job_is_undecided(const char *run_dir, uint32_t job)
{
	return has_state(run_dir, job, "undecided");
}
