// SPDX-License-Identifier: Apache-2.0
/*
 * preload.c - libsimrm.so: the device files of the simulated driver.
 *
 * There is no kernel module behind the simulated cards. A program that speaks to
 * the driver's device files through libc is started with this library preloaded,
 * which answers in the kernel's place. An open file is a memfd, so that it can be
 * mapped and closed as any; a descriptor counts as such a file only while it still
 * is that very memfd.
 */
#define _GNU_SOURCE
#include "local.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_FILES 64

static struct file {
	bool used;
	int fd;
	ino_t inode;
	struct client *client; /* of a control file */
	int capability;        /* of the file of one; else -1 */
} files[MAX_FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_state *state;

EXPORT int open(const char *path, int flags, ...);
EXPORT int ioctl(int fd, unsigned long request, ...);

/* The file that a descriptor is, and NULL for all others. */
static struct file *file_of(int fd)
{
	struct stat sb;

	for (int i = 0; i < MAX_FILES; i++) {
		struct file *f = &files[i];

		if (f->used && f->fd == fd)
			return fstat(fd, &sb) == 0 && sb.st_ino == f->inode ? f : NULL;
	}
	return NULL;
}

/* Frees what belongs to files that have been closed. */
static void prune(void)
{
	for (int i = 0; i < MAX_FILES; i++) {
		struct file *f = &files[i];

		if (!f->used || file_of(f->fd) == f)
			continue;
		if (f->client) {
			rm_free(state, f->client);
			free(f->client);
		}
		f->used = false;
	}
}

static int new_file(const char *name, int flags, bool control)
{
	struct file *f = files;
	struct stat sb;
	int fd;

	prune();
	while (f < files + MAX_FILES && f->used)
		f++;
	fd = memfd_create(name, MFD_ALLOW_SEALING | (flags & O_CLOEXEC ? MFD_CLOEXEC : 0));
	if (fd < 0)
		return -1;
	*f = (struct file){.fd = fd, .capability = -1};
	if (f == files + MAX_FILES || fstat(fd, &sb) ||
	    (control && !(f->client = calloc(1, sizeof(*f->client))))) {
		close(fd);
		errno = ENOMEM;
		return -1;
	}
	f->inode = sb.st_ino;
	f->used = true;
	return fd;
}

static int capability_of(int fd)
{
	struct file *f = file_of(fd);

	return f ? f->capability : -1;
}

static bool has_capability(unsigned minor)
{
	for (uint32_t i = state->ngpus; i < state->ncards; i++)
		if (state->card[i].conf.gi_cap == minor || state->card[i].conf.ci_cap == minor)
			return true;
	return false;
}

static bool has_minor(unsigned minor)
{
	for (uint32_t i = 0; i < state->ncards; i++)
		if (state->card[i].conf.minor == minor)
			return true;
	return false;
}

/* -2: not one of the driver's files. */
static int open_node(const char *path, int flags)
{
	unsigned minor;
	char rest;
	bool control = strcmp(path, "/dev/nvidiactl") == 0;
	bool capability = sscanf(path, "/dev/nvidia-caps/nvidia-cap%u%c", &minor, &rest) == 1;
	int fd = -1;

	if (!control && !capability && sscanf(path, "/dev/nvidia%u%c", &minor, &rest) != 1)
		return -2;
	pthread_mutex_lock(&lock);
	if (!state)
		state = sim_attach((const void *)open_node);
	if (!state || (!control && !(capability ? has_capability(minor) : has_minor(minor))))
		errno = ENOENT;
	else
		fd = new_file(path + strlen("/dev/"), flags, control);
	if (fd >= 0 && capability)
		file_of(fd)->capability = (int)minor;
	rm_capability = capability_of;
	pthread_mutex_unlock(&lock);
	return fd;
}

int open(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);
	mode_t mode = 0;
	va_list ap;
	int fd;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	fd = open_node(path, flags);
	if (fd != -2)
		return fd;
	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
	return next(path, flags, mode);
}

static bool can_map(int fd)
{
	struct file *f = file_of(fd);

	return f && f->client && !f->client->handle;
}

/* -2: not of the driver. */
static int call(int fd, unsigned long request, void *arg)
{
	struct file *f;
	int rc = -2;

	if (_IOC_TYPE(request) != 'F')
		return -2;
	pthread_mutex_lock(&lock);
	f = file_of(fd);
	if (f) {
		rc = f->client && arg &&
				     rm_call(state, f->client, _IOC_NR(request), _IOC_SIZE(request),
					     arg, can_map)
			     ? 0
			     : -1;
		if (rc)
			errno = EINVAL;
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*next)(int, unsigned long, ...);
	void *arg;
	va_list ap;
	int rc;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	rc = call(fd, request, arg);
	if (rc != -2)
		return rc;
	if (!next)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, arg);
}
