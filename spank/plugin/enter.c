/* SPDX-License-Identifier: Apache-2.0 */
/*
 * enter.c - puts this process behind the grant of a job, for a task (taskenv.c)
 * and for a session that was adopted into a job (pam_vgpu.c).
 */
#include <errno.h>
#include <unistd.h>

#include "plugin.h"

static int open_bind(const struct vgpu_member *member, int bind, int dir, struct vgpu_why *why)
{
	int fd = bind == 0   ? vgpu_jobdir_grant(dir, member->job, member->uid, why)
		 : bind == 1 ? vgpu_jobdir_cache(dir, member->uid, why)
			     : vgpu_jobdir_of_node(member->config->run_dir, "preload", why);

	if (fd != -ENOENT)
		return fd;
	if (bind == 0)
		return vgpu_because(why, "grant: vanished while the task was starting");
	if (bind == 1)
		return vgpu_because(why, "cache: missing beside the grant: see the log of gresd");
	return vgpu_because(
		why, "preload: missing: gresd makes it when it starts: see systemctl status gresd");
}

/* Opens everything again: a file that was opened before the namespace was
 * entered belongs to the old one and cannot be bound in the new. */
int vgpu_member_enter(const struct vgpu_member *member, struct vgpu_why *why)
{
	static const char *const targets[] = {VGPU_SELF_GRANT, VGPU_SELF_CACHE, VGPU_PRELOAD};
	int dir, fd, i, err = 0;

	if (vgpu_mount_private(why))
		return -1;
	dir = vgpu_jobdir_open(member->config->run_dir, member->job, why);
	if (dir == -ENOENT)
		return vgpu_because(why, "job directory: vanished while the task was starting");
	if (dir < 0)
		return -1;
	for (i = 0; !err && i < 3; i++) {
		fd = open_bind(member, i, dir, why);
		err = fd < 0 ? -1 : vgpu_mount_file(fd, targets[i], i == 1, why);
		if (fd >= 0)
			close(fd);
	}
	close(dir);
	if (!err && member->config->seccomp)
		err = vgpu_seccomp_no_user_namespaces(why);
	return err;
}

/* For a job without a grant that may have lost a share. A variable alone is not enough: a program
 * can set it back. */
int vgpu_member_hide_cards(struct vgpu_why *why)
{
	if (vgpu_mount_private(why))
		return -1;
	return vgpu_mount_no_devices("/dev", "nvidia", why);
}

/* 1 when the job has a grant here, 0 when it has none, -1 with *why when it was
 * refused or what is there cannot be used. */
int vgpu_member_admit(const struct vgpu_member *member, struct vgpu_why *why)
{
	int dir = vgpu_jobdir_open(member->config->run_dir, member->job, why), fd;
	bool refused;

	if (dir == -ENOENT)
		return 0;
	if (dir < 0)
		return -1;
	refused = vgpu_jobdir_refused(dir, why);
	fd = refused ? -1 : vgpu_jobdir_grant(dir, member->job, member->uid, why);
	close(dir);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return -1;
	close(fd);
	return 1;
}
