// SPDX-License-Identifier: Apache-2.0
/*
 * limits.c - memory limits of cgroups, as drivers from r615 on have them by NVIDIA's documents
 * and by the source of their kernel modules (kernel/mem_mgr/memacct.c): the nearest folder with
 * a limit counts, whatever the folders above it have; one below what is in use is refused; with
 * its folder a limit is gone.
 */
#define _GNU_SOURCE
#include "model.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* Where cgroup v2 is, alone or beside v1. */
static const char *mounted(void)
{
	struct statfs fs;

	if (statfs("/sys/fs/cgroup", &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC)
		return "/sys/fs/cgroup";
	return "/sys/fs/cgroup/unified";
}

static uint64_t inode(const char *name)
{
	char path[SIM_FOLDER + 32];
	struct stat st;

	snprintf(path, sizeof(path), "%s%s", mounted(), name);
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? st.st_ino : 0;
}

/* The cgroup of a process, "" where it is not known. */
static void cgroup_of(int32_t pid, char *name, size_t size)
{
	char path[32], line[SIM_FOLDER + 8];
	FILE *f;

	*name = '\0';
	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, "0::", 3) == 0)
			snprintf(name, size, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
	fclose(f);
}

/* The limit that counts for a cgroup on a card; NULL: none. */
static struct sim_limit *nearest(struct sim_state *st, uint32_t card, const char *name)
{
	struct sim_limit *best = NULL;

	for (uint32_t i = 0; i < SIM_MAX_LIMITS; i++) {
		struct sim_limit *l = &st->limit[i];
		size_t n = strlen(l->folder);

		if (!n || l->card != card || strncmp(name, l->folder, n) ||
		    (name[n] && name[n] != '/') || inode(l->folder) != l->inode)
			continue;
		if (!best || n > strlen(best->folder))
			best = l;
	}
	return best;
}

static uint64_t used_under(struct sim_state *st, const struct sim_limit *l)
{
	char name[SIM_FOLDER];
	uint64_t sum = 0;

	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		if (!st->proc[i].used || !st->proc[i].mem[l->card])
			continue;
		cgroup_of(sim_proc_pid(st, i), name, sizeof(name));
		if (nearest(st, l->card, name) == l)
			sum += st->proc[i].mem[l->card];
	}
	return sum;
}

bool sim_limit_of(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t *most,
		  uint64_t *used)
{
	char name[SIM_FOLDER];
	struct sim_limit *l;

	if (!st->limits)
		return false;
	cgroup_of(sim_proc_pid(st, proc), name, sizeof(name));
	l = nearest(st, card, name);
	if (!l)
		return false;
	*most = l->most;
	*used = used_under(st, l);
	if (*used > l->most) /* by a process that came later with what it had */
		*used = l->most;
	return true;
}

/* The same folder's limit, or a place that is free. */
static struct sim_limit *place(struct sim_state *st, uint32_t card, const char *name)
{
	struct sim_limit *unused = NULL;

	for (uint32_t i = 0; i < SIM_MAX_LIMITS; i++) {
		struct sim_limit *l = &st->limit[i];

		if (*l->folder && inode(l->folder) != l->inode)
			memset(l, 0, sizeof(*l));
		if (*l->folder && l->card == card && strcmp(l->folder, name) == 0)
			return l;
		if (!*l->folder && !unused)
			unused = l;
	}
	return unused;
}

int sim_limit_set(struct sim_state *st, uint32_t card, const char *path, uint64_t most)
{
	size_t n = strlen(mounted());
	struct sim_limit *l, old;

	if (strncmp(path, mounted(), n) || path[n] != '/' || !path[n + 1] ||
	    strlen(path + n) >= SIM_FOLDER)
		return -EINVAL;
	if (!inode(path + n))
		return -ENOENT;
	l = place(st, card, path + n);
	if (!l)
		return -ENOSPC;
	old = *l;
	memset(l, 0, sizeof(*l));
	if (most == UINT64_MAX)
		return 0;
	strcpy(l->folder, path + n);
	l->card = card;
	l->inode = inode(l->folder);
	l->most = most;
	sim_reap(st, true);
	if (used_under(st, l) > most) {
		*l = old;
		return -EINVAL;
	}
	st->limits = 1;
	return 0;
}
