/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openfiles.c - see openfiles.h.
 *
 * A duplicate of a descriptor would keep the memory of an export. An entry of an epoll set does not.
 * The kernel removes the entry when the last reference to the open file goes, in any process.
 * /proc/self/fdinfo lists the entries with the 64 bits that were set for each.
 *
 * A followed file also gets a mark that belongs to the open file: the signal of F_SETSIG. The kernel
 * sends it only if the program also sets an owner and O_ASYNC. The mark shows that a descriptor still
 * belongs to the file that was followed by it last. But the descriptor can belong to another marked
 * file: an export that another process sent, or a duplicate of another export of this process. The
 * set then has no entry of this file and number, and takes one. The mark is the only rule for a file
 * that cannot be polled.
 *
 * The program can close the set, and use its descriptor again. The set has a mark of its own to detect
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
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/table.h"
#include "openfiles.h"

/* Both signals are ignored if they have no handler. */
#define FILE_MARK SIGURG
#define SET_MARK SIGWINCH
#define SET_NUMBER 512 /* or above: few programs choose such numbers */

static int set = -1;
static uint64_t first, last; /* the files that were entered into the set */
/* id -> fd; owner: the memory; refs: a set lists the file; size: the last reading with the file */
static VGPU_TABLE(files);
static VGPU_TABLE(numbers); /* fd -> id of the last file that it followed */
static uint64_t reading;    /* counts the readings of the set */
static enum { UNREAD, READ, UNKNOWN } list = UNREAD;

static bool is_marked(int fd, int mark)
{
	return fcntl(fd, F_GETSIG) == mark;
}

static bool has_set(void)
{
	return set >= 0 && is_marked(set, SET_MARK);
}

/* Returns an error of errno, or 0. */
static int open_set(void)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0)
		return errno;
	set = fcntl(fd, F_DUPFD_CLOEXEC, SET_NUMBER);
	if (set < 0)
		set = fd;
	else
		close(fd);
	first = last + 1;
	return fcntl(set, F_SETSIG, SET_MARK) ? errno : 0;
}

/* Returns an error of errno, or 0. */
static int enter(int fd, uint64_t id)
{
	struct epoll_event e = {.events = EPOLLET, .data.u64 = id};

	return epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) ? errno : 0;
}

/* True if the set has an entry of this number and its present file. */
static bool is_entered(int fd)
{
	int error = enter(fd, 0);

	if (!error)
		epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
	return error == EEXIST;
}

static bool is_listed(const struct vgpu_item *file)
{
	return file->refs && file->key >= first && has_set();
}

static void read_set(void)
{
	char line[256];

	snprintf(line, sizeof line, "/proc/self/fdinfo/%d", set);
	FILE *f = fopen(line, "re");
	reading++;
	while (f && fgets(line, sizeof line, f)) {
		const char *data = strncmp(line, "tfd:", 4) == 0 ? strstr(line, "data:") : NULL;

		if (data)
			vgpu_table_raise(&files, strtoull(data + 5, NULL, 16), reading);
	}
	list = f && !ferror(f) && has_set() ? READ : UNKNOWN;
	if (f)
		fclose(f);
}

/* The file that was followed by this number last, if its descriptor still belongs to the file. */
static bool still_of(const struct vgpu_item *number, struct vgpu_item *file)
{
	int fd = (int)number->key;

	return is_marked(fd, FILE_MARK) && vgpu_table_get(&files, number->other, file) &&
	       (!is_listed(file) || is_entered(fd));
}

static bool followed_by(int fd, struct vgpu_item *file)
{
	struct vgpu_item number;

	return vgpu_table_get(&numbers, (uint64_t)fd, &number) && still_of(&number, file);
}

int vgpu_openfile_follow(int fd, uint64_t of, uint64_t *id)
{
	struct vgpu_item number = {.key = (uint64_t)fd, .other = last + 1}, file;

	if (followed_by(fd, &file)) {
		*id = file.key;
		return 0;
	}
	int error = has_set() ? 0 : open_set();
	if (!error)
		error = enter(fd, number.other);
	if (error && error != EPERM) /* of a file that cannot be polled */
		return error == EBADF ? -EBADF : -ENOMEM;
	file = (struct vgpu_item){
		.key = ++last, .size = reading, .owner = of, .other = number.key, .refs = !error};
	*id = file.key;
	bool reused = vgpu_table_take(&numbers, number.key, &(struct vgpu_item){0});
	if (!vgpu_table_put(&files, &file) || !vgpu_table_put(&numbers, &number))
		return -ENOMEM;
	fcntl(fd, F_SETSIG, FILE_MARK);
	return reused;
}

bool vgpu_openfile_exists(uint64_t id)
{
	struct vgpu_item file, by;

	if (!vgpu_table_get(&files, id, &file))
		return false;
	if (followed_by((int)file.other, &by) && by.key == id)
		return true;
	if (file.refs && !is_listed(&file)) /* a closed set lists it */
		return true;
	if (file.refs && list == UNREAD)
		read_set();
	vgpu_table_get(&files, id, &file);
	if (file.refs && (list == UNKNOWN || file.size == reading))
		return true;
	vgpu_table_take(&files, id, &file);
	return false;
}

struct search {
	int fd;
	bool found;
	struct vgpu_item file;
};

/* 0 of KCMP_FILE: two descriptors of one open file. A kernel without kcmp finds none. */
static bool is_same(const struct vgpu_item *number, uint64_t search)
{
	struct search *s = (struct search *)(uintptr_t)search;

	s->found = s->found ||
		   (syscall(SYS_kcmp, getpid(), getpid(), 0, s->fd, (int)number->key) == 0 &&
		    still_of(number, &s->file));
	return false;
}

/* An open file that was followed by the same number before. The descriptor can be of each of them. */
static bool is_older(const struct vgpu_item *file, uint64_t search)
{
	struct search *s = (struct search *)(uintptr_t)search;

	if (file->other == s->file.other && file->key != s->file.key && file->refs &&
	    (!is_listed(file) || list == UNKNOWN || file->size == reading))
		s->found = false;
	return false;
}

uint64_t vgpu_openfile_find(int fd)
{
	struct search s = {.fd = fd};

	s.found = followed_by(fd, &s.file);
	if (!s.found && is_marked(fd, FILE_MARK))
		vgpu_table_sweep(&numbers, (uintptr_t)&s, is_same);
	if (!s.found)
		return 0;
	if (list == UNREAD)
		read_set();
	vgpu_table_sweep(&files, (uintptr_t)&s, is_older);
	return s.found ? s.file.owner : 0;
}

void vgpu_openfiles_begin(void)
{
	list = UNREAD;
}

void vgpu_openfiles_in_child(void)
{
	/* Entries of the parent's set have the parent's data. */
	set = -1;
}
