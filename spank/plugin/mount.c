/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "plugin.h"

/* From here on this process and its children have mounts of their own. Slave,
 * not private: what the administrator mounts later still arrives, what is
 * mounted here never leaves. */
int vgpu_mount_private(struct vgpu_why *why)
{
	if (unshare(CLONE_NEWNS))
		return vgpu_because(why, "mount namespace: unshare: %s", strerror(errno));
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		return vgpu_because(why, "mount namespace: make / a slave: %s", strerror(errno));
	return 0;
}

/* Binds the file open at fd over target. By descriptor, so that what is bound
 * is what was checked. fd must have been opened in this mount namespace. */
int vgpu_mount_file(int fd, const char *target, bool writable, struct vgpu_why *why)
{
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | (writable ? 0 : MS_RDONLY);
	char source[32];

	snprintf(source, sizeof(source), "/proc/self/fd/%d", fd);
	if (mount(source, target, NULL, MS_BIND, NULL)) {
		if (errno == ENOENT)
			return vgpu_because(why,
					    "%s: missing: gresd makes it when it starts: see "
					    "systemctl status gresd",
					    target);
		return vgpu_because(why, "%s: bind: %s", target, strerror(errno));
	}
	/* The flags of a bind count only in a second, remounting call. */
	if (mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | flags, NULL))
		return vgpu_because(why, "%s: remount: %s", target, strerror(errno));
	return 0;
}

/* Nothing opens the device files of that folder whose names begin so, nor those in such folders,
 * from here on: each is behind a mount without devices. */
int vgpu_mount_no_devices(const char *folder, const char *begin, struct vgpu_why *why)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	char path[512];
	int fd, err = 0;

	if (!dir)
		return vgpu_because(why, "%s: %s", folder, strerror(errno));
	while (!err && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, begin, strlen(begin)) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		fd = open(path, O_PATH | O_CLOEXEC);
		if (fd < 0)
			err = vgpu_because(why, "%s: %s", path, strerror(errno));
		else
			err = vgpu_mount_file(fd, path, true, why);
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	return err;
}
