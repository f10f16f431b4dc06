/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../libvgpu/region.h"
#include "plugin.h"

/* Opens a file below dir, or a folder (O_DIRECTORY), never through a symbolic link, never blocking on a
 * FIFO. -ENOENT stays quiet: most files here may rightly be absent. */
static int open_type(int dir, const char *name, int folder, struct stat *st, struct vgpu_why *why)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | folder);

	if (fd < 0) {
		if (errno == ENOENT)
			return -ENOENT;
		return vgpu_because(why, "%s: open: %s", name, strerror(errno));
	}
	if (!fstat(fd, st) && (folder || S_ISREG(st->st_mode)))
		return fd;
	close(fd);
	return vgpu_because(why, "%s: not a regular file", name);
}

/* The same if only root can have written the file. With a POSIX ACL the group bits are its mask,
 * so a file that is writable through an ACL is caught too. */
static int open_of_root(int dir, const char *name, int folder, struct vgpu_why *why)
{
	struct stat st;
	int fd = open_type(dir, name, folder, &st, why);

	/* Set where there is a descriptor. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
	if (fd < 0 || (st.st_uid == 0 && !(st.st_mode & (S_IWGRP | S_IWOTH))))
		return fd;
	close(fd);
	return vgpu_because(why, "%s: owner %u mode %04o: want a %s that only root can write", name,
			    st.st_uid, st.st_mode & 07777, folder ? "directory" : "file");
}

int vgpu_jobdir_of_node(const char *run_dir, const char *name, struct vgpu_why *why)
{
	char path[256];

	if (snprintf(path, sizeof(path), "%s/%s", run_dir, name) >= (int)sizeof(path))
		return vgpu_because(why, "run_dir=%s: path too long", run_dir);
	return open_of_root(AT_FDCWD, path, 0, why);
}

int vgpu_jobdir_open(const char *run_dir, uint32_t job, struct vgpu_why *why)
{
	char path[256];

	if (snprintf(path, sizeof(path), "%s/jobs/%u", run_dir, job) >= (int)sizeof(path))
		return vgpu_because(why, "run_dir=%s: path too long", run_dir);
	return open_of_root(AT_FDCWD, path, O_DIRECTORY, why);
}

static int check_grant(int fd, uint32_t job, uid_t uid, struct vgpu_why *why)
{
	struct vgpu_grant head;
	ssize_t n = pread(fd, &head, sizeof(head), 0);

	if (n != (ssize_t)sizeof(head))
		return vgpu_because(why, "grant: %zd bytes: want %zu: is it from another release?",
				    n, sizeof(head));
	if (head.magic != VGPU_GRANT_MAGIC || head.size != sizeof(head))
		return vgpu_because(why, "grant: not a grant file");
	if (head.version != VGPU_REGION_VERSION)
		return vgpu_because(why,
				    "grant: version %u: this plugin reads version %u: install "
				    "plugin and gresd from one release",
				    head.version, VGPU_REGION_VERSION);
	if (head.job_id != job || head.uid != uid)
		return vgpu_because(why,
				    "grant: made for job %u of uid %u: this is job %u of uid %u",
				    head.job_id, head.uid, job, uid);
	return 0;
}

int vgpu_jobdir_grant(int dir, uint32_t job, uid_t uid, struct vgpu_why *why)
{
	int fd = open_of_root(dir, "grant", 0, why);

	if (fd >= 0 && check_grant(fd, job, uid, why)) {
		close(fd);
		return -1;
	}
	return fd;
}

int vgpu_jobdir_cache(int dir, uid_t uid, struct vgpu_why *why)
{
	struct stat st;
	int fd = open_type(dir, "cache", 0, &st, why);

	/* Set where there is a descriptor. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
	if (fd < 0 || st.st_uid == uid)
		return fd;
	close(fd);
	return vgpu_because(why, "cache: owner %u: want the job's user %u", st.st_uid, uid);
}

int vgpu_jobdir_environment(int dir, struct vgpu_why *why)
{
	return open_of_root(dir, "environment", 0, why);
}

/* True when gresd has refused the job; *why is then gresd's line. */
bool vgpu_jobdir_refused(int dir, struct vgpu_why *why)
{
	char line[sizeof(why->text)];
	struct stat st;
	int fd = open_type(dir, "refused", 0, &st, why);

	if (fd < 0)
		return fd != -ENOENT;
	vgpu_read_text(fd, line, sizeof(line));
	vgpu_printable(why->text, sizeof(why->text), line);
	if (!why->text[0])
		vgpu_because(why, "refused on this node, without a reason: see the log of gresd");
	return true;
}
