/* SPDX-License-Identifier: Apache-2.0 */
/* marks.c - empty files by which gresd tells tasks of its node, and Prolog of their job. */
#include <stdio.h>
#include <unistd.h>

#include "plugin.h"

static bool is_there(const char *run_dir, const char *name)
{
	char path[256];

	return snprintf(path, sizeof(path), "%s/%s", run_dir, name) < (int)sizeof(path) &&
	       !access(path, F_OK);
}

static bool is_of_job(const char *run_dir, const char *folder, uint32_t job)
{
	char name[32];

	snprintf(name, sizeof(name), "%s/%u", folder, job);
	return is_there(run_dir, name);
}

bool vgpu_is_placed_by_gresd(const char *run_dir)
{
	return is_there(run_dir, "ask-gresd");
}

bool vgpu_may_lose_shards(const char *run_dir)
{
	return is_there(run_dir, "loses-shards");
}

bool vgpu_is_plain(const char *run_dir, uint32_t job)
{
	return is_of_job(run_dir, "plain", job);
}

bool vgpu_is_unknown(const char *run_dir, uint32_t job)
{
	return is_of_job(run_dir, "unknown", job) && !vgpu_is_plain(run_dir, job);
}
