/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../libvgpu/region.h"
#include "plugin.h"

static void close_keep_errno(int fd)
{
	int saved = errno;

	close(fd);
	errno = saved;
}

/* True when nobody but root can have written the file. With a POSIX ACL the
 * group bits are its mask, so a file that is writable through an ACL is caught
 * too. */
static bool only_root_writes(const struct stat *st)
{
	/* Set where there is a descriptor. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
	return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Opens name below dir, never through a symbolic link, never blocking on a
 * FIFO. -ENOENT stays quiet: most files here may rightly be absent. */
static int open_regular(int dir, const char *name, struct stat *st, struct vgpu_why *why)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		if (errno == ENOENT)
			return -ENOENT;
		return vgpu_because(why, "%s: open: %s", name, strerror(errno));
	}
	if (fstat(fd, st)) {
		vgpu_because(why, "%s: stat: %s", name, strerror(errno));
	} else if (!S_ISREG(st->st_mode)) {
		vgpu_because(why, "%s: not a regular file", name);
	} else {
		return fd;
	}
	close(fd);
	return -1;
}

int vgpu_jobdir_open(const char *run_dir, uint32_t job, struct vgpu_why *why)
{
	char path[256];
	struct stat st;
	int fd;

	if (snprintf(path, sizeof(path), "%s/jobs/%u", run_dir, job) >= (int)sizeof(path))
		return vgpu_because(why, "run_dir=%s: path too long", run_dir);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		if (errno == ENOENT)
			return -ENOENT;
		return vgpu_because(why, "%s: open: %s", path, strerror(errno));
	}
	if (fstat(fd, &st)) {
		vgpu_because(why, "%s: stat: %s", path, strerror(errno));
	} else if (!only_root_writes(&st)) {
		vgpu_because(why,
			     "%s: owner %u mode %04o: want a directory that only root can write",
			     path, st.st_uid, st.st_mode & 07777);
	} else {
		return fd;
	}
	close(fd);
	return -1;
}

static int check_grant(int fd, const struct stat *st, uint32_t job, uid_t uid, struct vgpu_why *why)
{
	struct vgpu_grant head;

	if (!only_root_writes(st))
		return vgpu_because(
			why, "grant: owner %u mode %04o: want a file that only root can write",
			st->st_uid, st->st_mode & 07777);
	if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		return vgpu_because(why, "grant: %lld bytes: want %zu: is it from another release?",
				    (long long)st->st_size, sizeof(head));
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
	struct stat st;
	int fd = open_regular(dir, "grant", &st, why);

	if (fd >= 0 && check_grant(fd, &st, job, uid, why)) {
		close(fd);
		return -1;
	}
	return fd;
}

int vgpu_jobdir_cache(int dir, uid_t uid, struct vgpu_why *why)
{
	struct stat st;
	int fd = open_regular(dir, "cache", &st, why);

	/* Set where there is a descriptor. NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
	if (fd >= 0 && st.st_uid != uid) {
		vgpu_because(why, "cache: owner %u: want the job's user %u", st.st_uid, uid);
		close(fd);
		return -1;
	}
	return fd;
}

int vgpu_jobdir_of_node(const char *run_dir, const char *name, struct vgpu_why *why)
{
	struct stat st;
	int dir, fd;

	dir = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return vgpu_because(why, "%s: open: %s", run_dir, strerror(errno));
	fd = open_regular(dir, name, &st, why);
	close_keep_errno(dir);
	if (fd >= 0 && !only_root_writes(&st)) {
		vgpu_because(why, "%s: owner %u mode %04o: want a file that only root can write",
			     name, st.st_uid, st.st_mode & 07777);
		close(fd);
		return -1;
	}
	return fd;
}

int vgpu_jobdir_environment(int dir, struct vgpu_why *why)
{
	struct stat st;
	int fd = open_regular(dir, "environment", &st, why);

	if (fd >= 0 && !only_root_writes(&st)) {
		vgpu_because(why,
			     "environment: owner %u mode %04o: want a file that only root can "
			     "write",
			     st.st_uid, st.st_mode & 07777);
		close(fd);
		return -1;
	}
	return fd;
}

/* True when gresd has refused the job; *why is then gresd's line. */
bool vgpu_jobdir_refused(int dir, struct vgpu_why *why)
{
	char line[sizeof(why->text)];
	struct stat st;
	ssize_t n;
	int fd = open_regular(dir, "refused", &st, why);

	if (fd == -ENOENT)
		return false;
	if (fd < 0)
		return true;
	n = pread(fd, line, sizeof(line) - 1, 0);
	close(fd);
	line[n > 0 ? n : 0] = '\0';
	vgpu_printable(why->text, sizeof(why->text), line);
	if (!why->text[0])
		vgpu_because(why, "refused on this node, without a reason: see the log of gresd");
	return true;
}
