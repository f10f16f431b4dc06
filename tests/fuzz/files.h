/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - files that a target makes up, for code that opens them by name. Included
 * before all else (-include): the code's calls come to files.c. Files of /proc are
 * the real ones.
 */
#ifndef FUZZ_FILES_H
#define FUZZ_FILES_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum fuzz_name { GRANT, CACHE, REFUSED, ENVIRONMENT, PRELOAD, FOLDER, ASK, STATE, FUZZ_FILES };

/* A file of that name, in whatever folder; not there unless its bit is in here. */
extern unsigned fuzz_here;
/* Nothing below /run/vgpu/self. */
extern bool fuzz_no_self;
/* Who owns it and who may write it. */
struct fuzz_owner {
	uid_t uid;
	mode_t mode;
};
extern struct fuzz_owner fuzz_owner[FUZZ_FILES];
/* Variables, NULL at the end: name, value, name, value. */
extern const char *fuzz_environ[64];

/* Makes the file so long, of zeros, and writes at an offset. */
void fuzz_size(enum fuzz_name file, off_t size);
void fuzz_write(enum fuzz_name file, const void *data, size_t size, off_t at);
/* Unmaps what was mapped since the last call. */
void fuzz_unmap(void);

int fuzz_open(const char *path, int flags, ...);
int fuzz_openat(int dir, const char *name, int flags, ...);
int fuzz_fstat(int fd, struct stat *st);
int fuzz_access(const char *path, int mode);
void *fuzz_mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset);
char *fuzz_getenv(const char *name);

/* One process takes many attempts: nothing is kept for its children. */
static inline int fuzz_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
	(void)before;
	(void)parent;
	(void)child;
	return 0;
}

#define open fuzz_open
#define openat fuzz_openat
#define fstat fuzz_fstat
#define access fuzz_access
#define mmap fuzz_mmap
#define getenv fuzz_getenv
#define pthread_atfork fuzz_atfork
#define fork() (-1)

#endif
