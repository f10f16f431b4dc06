/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openfiles.c - see openfiles.h.
 *
 * A duplicate of a descriptor would keep the memory of an export. An entry of an epoll set does not.
 * The kernel removes the entry when the last reference to the open file goes, in any process.
 * /proc/self/fdinfo lists the entries with the 64 bits that were set for each.
 *
 * All exports are open files of /dev/nvidiactl, so device and inode do not tell one from another. So
 * each also gets a mark that belongs to the open file: the signal of F_SETSIG. The kernel sends it
 * only if the program also sets an owner and O_ASYNC. The mark shows that a number still belongs to
 * the file. It is also the only rule for a file that cannot be polled, and without /proc.
 *
 * The program can close the set, and use its number again. The set has a mark of its own to detect
 * this. Files that only a closed set listed count as open.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/table.h"
#include "openfiles.h"

/* Both signals are ignored if they have no handler. */
#define FILE_MARK SIGURG
#define SET_MARK SIGWINCH
#define SET_NUMBER 512 /* or above: few programs choose such numbers */

static int set = -1;
static bool unusable;        /* the kernel makes no set, or does not list it */
static uint64_t first, last; /* the entries of the set */
static struct vgpu_table entries = VGPU_TABLE_INIT; /* entry -> vgpu_openfile */
static uint64_t reading;                            /* counts the readings of the set */
static enum { UNREAD, READ, UNKNOWN } list = UNREAD;

static bool mark(int fd, int signal)
{
	return fcntl(fd, F_SETSIG, signal) == 0 && fcntl(fd, F_GETSIG) == signal;
}

static bool has_set(void)
{
	return set >= 0 && fcntl(set, F_GETSIG) == SET_MARK;
}

static bool is_shortage(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC;
}

/* Returns an error of errno, or 0. */
static int open_set(void)
{
	int fd = epoll_create1(EPOLL_CLOEXEC), high;

	if (fd < 0)
		return errno;
	high = fcntl(fd, F_DUPFD_CLOEXEC, SET_NUMBER);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	if (!mark(fd, SET_MARK)) {
		close(fd);
		return EINVAL;
	}
	set = fd;
	first = last + 1;
	return 0;
}

static void read_line(const char *line)
{
	const char *data = strncmp(line, "tfd:", 4) == 0 ? strstr(line, "data:") : NULL;
	struct vgpu_item item;

	if (data && vgpu_table_get(&entries, strtoull(data + 5, NULL, 16), &item))
		((struct vgpu_openfile *)(uintptr_t)item.other)->seen = reading;
}

/* Returns an error of errno, or 0. */
static int read_lines(void)
{
	char text[1024];
	size_t have = 0;
	ssize_t n;
	int fd, error;

	snprintf(text, sizeof text, "/proc/self/fdinfo/%d", set);
	fd = open(text, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	while ((n = read(fd, text + have, sizeof text - 1 - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		text[have] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = 0;
			read_line(line);
		}
		have -= (size_t)(line - text);
		memmove(text, line, have);
	}
	error = n < 0 ? errno : 0;
	close(fd);
	return error;
}

static int read_set(void)
{
	int error;

	reading++;
	error = read_lines();
	list = error || !has_set() ? UNKNOWN : READ;
	return error;
}

static int add_as(int fd, uint64_t entry)
{
	struct epoll_event e = {.events = EPOLLET, .data.u64 = entry};

	return epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : errno;
}

/* Returns an error of errno, or 0. A set can have one entry for each pair of file and number. If this
 * pair has an entry, the new one gets the number of a duplicate, which need not stay open. */
static int add_entry(int fd, uint64_t entry)
{
	int error = add_as(fd, entry), from = 3 + (int)(entry % 64), copy;

	for (; error == EEXIST; from = copy + 1) {
		copy = fcntl(fd, F_DUPFD_CLOEXEC, from);
		if (copy < 0)
			return EMFILE;
		error = add_as(copy, entry);
		close(copy);
	}
	return error;
}

/* The first entry of a set shows whether the kernel lists it. */
static int check_list(struct vgpu_openfile *f)
{
	int error = read_set();

	if (f->seen == reading || is_shortage(error))
		return error;
	unusable = true;
	vgpu_openfile_unfollow(f);
	f->entry = 0;
	return 0;
}

/* Returns an error of errno, or 0. */
static int enter(struct vgpu_openfile *f)
{
	struct vgpu_item item = {.key = last + 1, .other = (uintptr_t)f};
	int error = has_set() ? 0 : open_set();

	if (error) {
		unusable = !is_shortage(error);
		return error;
	}
	error = add_entry(f->fd, item.key);
	if (error)
		return error;
	f->entry = ++last;
	if (!vgpu_table_put(&entries, &item))
		return ENOMEM;
	return item.key == first ? check_list(f) : 0;
}

bool vgpu_openfile_follow(struct vgpu_openfile *f, int fd)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return false;
	*f = (struct vgpu_openfile){.fd = fd,
				    .dev = st.st_dev,
				    .rdev = st.st_rdev,
				    .ino = st.st_ino};
	f->marked = mark(fd, FILE_MARK);
	if (unusable || !is_shortage(enter(f)))
		return true;
	vgpu_openfile_unfollow(f);
	return false;
}

void vgpu_openfile_unfollow(const struct vgpu_openfile *f)
{
	struct vgpu_item item;

	if (f->entry)
		vgpu_table_take(&entries, f->entry, &item);
}

bool vgpu_openfile_has_number(const struct vgpu_openfile *f)
{
	struct stat now;
	int signal;

	if (fstat(f->fd, &now) != 0)
		return errno != EBADF;
	if (now.st_dev != f->dev || now.st_rdev != f->rdev || now.st_ino != f->ino)
		return false;
	signal = f->marked ? fcntl(f->fd, F_GETSIG) : FILE_MARK;
	return signal == FILE_MARK || signal < 0;
}

bool vgpu_openfile_exists(const struct vgpu_openfile *f)
{
	if (vgpu_openfile_has_number(f))
		return true;
	if (!f->entry)
		return false;
	if (f->entry < first || !has_set()) /* of a closed set */
		return true;
	if (list == UNREAD)
		read_set();
	return list == UNKNOWN || f->seen == reading;
}

void vgpu_openfiles_begin(void)
{
	list = UNREAD;
}

void vgpu_openfiles_in_child(void)
{
	/* Entries of the parent's set have the parent's data. */
	set = -1;
	unusable = false;
}
