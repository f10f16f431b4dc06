/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see files.h. */
#include "files.h"

#undef open
#undef openat
#undef fstat
#undef access
#undef mmap
#undef getenv

#include <errno.h>
#include <string.h>

#include "../libvgpu/check.h"

#define MOST_MAPS 8

unsigned fuzz_here;
bool fuzz_no_self;
struct fuzz_owner fuzz_owner[FUZZ_FILES];
const char *fuzz_environ[64];

static const char *const names[FUZZ_FILES] = {"grant",   "cache", "refused",   "environment",
					      "preload", "",      "ask-gresd", "state"};
static struct {
	int fd;
	dev_t dev;
	ino_t ino;
} files[FUZZ_FILES];
static struct {
	void *at;
	size_t size;
} maps[MOST_MAPS];
static unsigned nmaps;

static int descriptor(enum fuzz_name file)
{
	struct stat st;

	if (!files[file].ino) {
		files[file].fd = memfd_create(names[file], MFD_CLOEXEC);
		CHECK(files[file].fd >= 0 && fstat(files[file].fd, &st) == 0);
		files[file].dev = st.st_dev;
		files[file].ino = st.st_ino;
	}
	return files[file].fd;
}

void fuzz_size(enum fuzz_name file, off_t size)
{
	CHECK(ftruncate(descriptor(file), 0) == 0 && ftruncate(descriptor(file), size) == 0);
}

void fuzz_write(enum fuzz_name file, const void *data, size_t size, off_t at)
{
	CHECK(pwrite(descriptor(file), data, size, at) == (ssize_t)size);
}

static int give(enum fuzz_name file)
{
	if (!(fuzz_here >> file & 1)) {
		errno = ENOENT;
		return -1;
	}
	CHECK(lseek(descriptor(file), 0, SEEK_SET) == 0);
	return fcntl(descriptor(file), F_DUPFD_CLOEXEC, 3);
}

static enum fuzz_name named(const char *path)
{
	const char *last = strrchr(path, '/');
	int i = 0;

	if (strstr(path, "state/"))
		return STATE;
	last = last ? last + 1 : path;
	while (i < FUZZ_FILES && (i == FOLDER || strcmp(names[i], last)))
		i++;
	return i;
}

static int find(const char *path)
{
	enum fuzz_name file = named(path);

	if (file == FUZZ_FILES || (fuzz_no_self && !strncmp(path, "/run/vgpu/self/", 15))) {
		errno = ENOENT;
		return -1;
	}
	return give(file);
}

int fuzz_open(const char *path, int flags, ...)
{
	if (!strncmp(path, "/proc/", 6))
		return open(path, flags);
	return flags & O_DIRECTORY ? give(FOLDER) : find(path);
}

int fuzz_openat(int dir, const char *name, int flags, ...)
{
	struct stat st;

	if (dir == AT_FDCWD)
		return fuzz_open(name, flags);
	CHECK(fstat(dir, &st) == 0 && st.st_ino == files[FOLDER].ino);
	return find(name);
}

int fuzz_access(const char *path, int mode)
{
	int fd = find(path);

	(void)mode;
	if (fd < 0)
		return -1;
	close(fd);
	return 0;
}

int fuzz_fstat(int fd, struct stat *st)
{
	int r = fstat(fd, st);

	for (int i = 0; i < FUZZ_FILES; i++) {
		if (r == 0 && files[i].ino == st->st_ino && files[i].dev == st->st_dev) {
			st->st_uid = fuzz_owner[i].uid;
			st->st_mode = (st->st_mode & S_IFMT) | (fuzz_owner[i].mode & 07777);
		}
	}
	return r;
}

void *fuzz_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p = mmap(at, size, prot, flags, fd, offset);

	if (p != MAP_FAILED) {
		CHECK(nmaps < MOST_MAPS);
		maps[nmaps].at = p;
		maps[nmaps++].size = size;
	}
	return p;
}

void fuzz_unmap(void)
{
	while (nmaps) {
		nmaps--;
		munmap(maps[nmaps].at, maps[nmaps].size);
	}
}

char *fuzz_getenv(const char *name)
{
	for (int i = 0; fuzz_environ[i]; i += 2) {
		if (!strcmp(fuzz_environ[i], name))
			return (char *)fuzz_environ[i + 1];
	}
	return NULL;
}
