/* SPDX-License-Identifier: Apache-2.0 */
/*
 * old_glibc.h - what is built against a new glibc and loaded by an old one, back
 * to 2.17: programs of a container or of an old cluster. Included before all
 * else (-include) by the makefiles of libvgpu.so and of the SPANK plugin.
 *
 * glibc 2.34 took libpthread and libdl into libc and gave their functions new
 * version names; the linker takes the newest name unless it is told. stat and
 * fstat became functions only in 2.33; before, they were calls of __xstat and
 * __fxstat. check-glibc.sh finds what is missing here.
 *
 * Before 2.34 a program may have no libpthread when the library is loaded, and
 * needing it costs every new glibc 0.13 ms a start for two empty libraries. So
 * its functions are weak, and looked up when the first one is called. A program
 * that calls CUDA has libdl: without it, it would have no dlopen.
 */
#ifndef VGPU_BASE_OLD_GLIBC_H
#define VGPU_BASE_OLD_GLIBC_H

#include "../old_strtol.h"

#ifdef __x86_64__
#define VGPU_OLDEST "GLIBC_2.2.5"
#define VGPU_STAT_VERSION 1 /* of struct stat */
#elif defined(__aarch64__)
#define VGPU_OLDEST "GLIBC_2.17"
#define VGPU_STAT_VERSION 0
#endif
#ifdef VGPU_OLDEST
#include <sys/stat.h>

__asm__(".symver __fxstat,__fxstat@" VGPU_OLDEST);
__asm__(".symver __xstat,__xstat@" VGPU_OLDEST);
int __fxstat(int version, int fd, struct stat *st);
int __xstat(int version, const char *path, struct stat *st);
#define fstat(fd, st) __fxstat(VGPU_STAT_VERSION, fd, st)
#define stat(path, st) __xstat(VGPU_STAT_VERSION, path, st)
#endif

#ifdef __x86_64__
/* The macros below are the names of functions that headers declare, so the headers
 * come first. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

/* clang-format off */
__asm__(".symver pthread_attr_setstacksize,pthread_attr_setstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_key_create,pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock,pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_setname_np,pthread_setname_np@GLIBC_2.12");
__asm__(".symver pthread_setspecific,pthread_setspecific@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
#ifndef VGPU_PRELOAD /* libvgpu.so has these itself */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlvsym,dlvsym@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif
/* clang-format on */

#ifdef VGPU_PRELOAD
#pragma weak pthread_attr_setstacksize
#pragma weak pthread_create
#pragma weak pthread_key_create
#pragma weak pthread_mutex_trylock
#pragma weak pthread_once
#pragma weak pthread_setname_np
#pragma weak pthread_setspecific
#pragma weak pthread_sigmask
/* Returns a function of libpthread; one that returns ENOSYS when there is none. */
void *vgpu_late(const char *name);
/* Looked up once at each place. */
#define VGPU_LATE(name)                          \
	((name) ? (name) : ({                    \
		static void *late;               \
		if (!late)                       \
			late = vgpu_late(#name); \
		(__typeof__(&(name)))late;       \
	}))
#define pthread_attr_setstacksize(...) VGPU_LATE(pthread_attr_setstacksize)(__VA_ARGS__)
#define pthread_create(...) VGPU_LATE(pthread_create)(__VA_ARGS__)
#define pthread_key_create(...) VGPU_LATE(pthread_key_create)(__VA_ARGS__)
#define pthread_mutex_trylock(...) VGPU_LATE(pthread_mutex_trylock)(__VA_ARGS__)
#define pthread_once(...) VGPU_LATE(pthread_once)(__VA_ARGS__)
#define pthread_setname_np(...) VGPU_LATE(pthread_setname_np)(__VA_ARGS__)
#define pthread_setspecific(...) VGPU_LATE(pthread_setspecific)(__VA_ARGS__)
#define pthread_sigmask(...) VGPU_LATE(pthread_sigmask)(__VA_ARGS__)
#endif
#endif

#endif
