/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
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

static int mount_no_devices(const char *path, struct vgpu_why *why)
{
	int fd = open(path, O_PATH | O_CLOEXEC), err;

	if (fd < 0)
		return vgpu_because(why, "%s: %s", path, strerror(errno));
	err = vgpu_mount_file(fd, path, true, why);
	close(fd);
	return err;
}

/* As getdents64(2) has it. */
struct entry {
	uint64_t inode;
	int64_t next;
	unsigned short size;
	unsigned char type;
	char name[];
};

/* Nothing opens the device files of that folder whose names begin so, nor those in such folders,
 * from here on: each is behind a mount without devices. Not by opendir(), which takes memory. */
int vgpu_mount_no_devices(const char *folder, const char *begin, struct vgpu_why *why)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	_Alignas(struct entry) char entries[4096];
	char path[512];
	long n = fd;

	while (!err && n >= 0 && (n = syscall(SYS_getdents64, fd, entries, sizeof(entries))) > 0) {
		const struct entry *e;
		long at;

		for (at = 0; !err && at < n; at += e->size) {
			e = (const struct entry *)(entries + at);
			if (strncmp(e->name, begin, strlen(begin)) != 0)
				continue;
			snprintf(path, sizeof(path), "%s/%s", folder, e->name);
			err = mount_no_devices(path, why);
		}
	}
	if (n < 0)
		err = vgpu_because(why, "%s: %s", folder, strerror(errno));
	if (fd >= 0)
		close(fd);
	return err;
}
