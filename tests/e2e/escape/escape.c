/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu-escape WAY [HOLD_SECONDS] - takes card memory as a program would that
 * wants to get around its limit, and prints what it got as vgpu-worker --fill
 * does. WAY is how it comes by the driver's functions:
 *
 *   dlsym          dlopen of libcuda.so.1, and dlsym: as an honest program
 *   path:FILE      the same with the path of the real library
 *   copy:FILE      a copy of the library, opened after the library itself has been called
 *   deepbind:FILE  a library that is linked to it, opened with RTLD_DEEPBIND, has them
 *   dlmopen:FILE   the same in a namespace of its own
 *   elf            its symbol table read by hand, without dlsym
 *   descriptors    with no descriptor left when the first call is made, then again
 *   limit          with none left when no more memory is given, and children that end
 *   filter         under a seccomp filter of its own, which hides the grant
 *   ptrace         as dlsym, while its parent denies it all files of slurm-vgpu
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../simgpu/cuda_abi.h"

#define CHUNK (256u << 20)
#define MOST (10ull << 30) /* enough to tell: the job of the test has 8 GiB */

static void *library;
static void *(*find)(const char *name);

static void die(const char *what, const char *why)
{
	fprintf(stderr, "vgpu-escape: %s: %s\n", what, why);
	exit(1);
}

#ifdef ESCAPE_STATIC
/* A driver that is part of the program: the simulated one takes no more. */
#define NAMES(X)           \
	X(cuInit)          \
	X(cuDeviceGet)     \
	X(cuCtxCreate_v2)  \
	X(cuMemGetInfo_v2) \
	X(cuMemAlloc_v2)
static void *by_dlsym(const char *name)
{
#define IF_NAMED(function)            \
	if (!strcmp(name, #function)) \
		return (void *)function;
	NAMES(IF_NAMED)
	return NULL;
}

/* A real driver's program has a device file open, which gresd looks for. The
 * simulated one's has none: here the library's file stands for it. */
static void stand_in(const char *file)
{
	int fd = open(file, O_RDONLY);

	if (fd < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		die(file, strerror(errno));
}
#else
static void *by_dlsym(const char *name)
{
	return dlsym(library, name);
}

/* The library that way names; those of deepbind: and dlmopen: say themselves what they found. */
static void open_library(const char *way)
{
	const char *file = strchr(way, ':');
	bool copy = !strncmp(way, "copy:", 5);
	bool deep = !strncmp(way, "deepbind:", 9), space = !strncmp(way, "dlmopen:", 8);

	file = file ? file + 1 : "libcuda.so.1";
	library = copy ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
	if (copy && (!library || !dlsym(library, "cuInit")))
		die("libcuda.so.1", dlerror());
	library = space ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW)
			: dlopen(file, RTLD_NOW | (deep ? RTLD_DEEPBIND : 0));
	if (!library)
		die("dlopen", dlerror());
	if (deep || space)
		find = (void *(*)(const char *))dlsym(library, "plugin_find");
}
#endif

/* Only the exported symbols of the library itself, through its hash table's
 * count of symbols: what an interposed dlsym never sees. */
static void *by_elf(const char *name)
{
	struct link_map *map = library;
	const ElfW(Sym) *symbols = NULL;
	const char *strings = NULL;
	const uint32_t *gnu = NULL;
	uint32_t i, last = 0;

	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			strings = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_GNU_HASH)
			gnu = (const void *)d->d_un.d_ptr;
	}
	if (!symbols || !strings || !gnu)
		die(name, "libcuda has no symbol table");
	const uint32_t *buckets = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chains = buckets + gnu[0];

	for (i = 0; i < gnu[0]; i++)
		last = buckets[i] > last ? buckets[i] : last;
	while (last >= gnu[1] && !(chains[last - gnu[1]] & 1))
		last++;
	for (i = gnu[1]; i <= last; i++) {
		if (symbols[i].st_value && !strcmp(strings + symbols[i].st_name, name))
			return (void *)(map->l_addr + symbols[i].st_value);
	}
	return NULL;
}

static void *need(const char *name)
{
	void *function = find(name);

	if (!function)
		die(name, "not found");
	return function;
}

/* The library reads its grant at the first call. */
static void call_without_descriptors(void)
{
	struct rlimit old, none;
	CUresult (*init)(unsigned int);

	getrlimit(RLIMIT_NOFILE, &old);
	none = old;
	none.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &none);
	init = need("cuInit");
	init(0);
	setrlimit(RLIMIT_NOFILE, &old);
}

/* Files that are opened read-only without following links "do not exist", nor
 * do those that are asked for with access(2). */
static void hide_grant(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_faccessat, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_faccessat2, 4, 0),
#ifdef __NR_access
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_access, 3, 0),
#else
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_faccessat, 3, 0),
#endif
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_NOFOLLOW, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOENT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp", strerror(errno));
}

#ifdef __x86_64__
/* True when the traced process is about to open a file of slurm-vgpu. */
static bool opens_ours(pid_t child, const struct user_regs_struct *regs)
{
	char path[64];

	if (regs->orig_rax != SYS_openat)
		return false;
	for (size_t i = 0; i < sizeof(path); i += sizeof(long)) {
		errno = 0;
		long word = ptrace(PTRACE_PEEKDATA, child, regs->rsi + i, NULL);

		if (errno)
			word = 0;
		memcpy(path + i, &word, sizeof(word));
	}
	path[sizeof(path) - 1] = 0;
	return !strncmp(path, "/run/vgpu/", strlen("/run/vgpu/"));
}

/* Starts a child that goes on with main, and never returns. */
static void trace_child(void)
{
	bool entering = false;
	pid_t child = fork();
	int status;

	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		return;
	}
	waitpid(child, &status, 0);
	ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
	for (;;) {
		struct user_regs_struct regs;
		bool call;

		ptrace(PTRACE_SYSCALL, child, NULL, NULL);
		if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
			exit(0);
		call = WSTOPSIG(status) == (SIGTRAP | 0x80);
		entering = call && !entering;
		if (!entering || ptrace(PTRACE_GETREGS, child, NULL, &regs))
			continue;
		if (opens_ours(child, &regs)) {
			regs.orig_rax = (unsigned long long)-1; /* no such call */
			ptrace(PTRACE_SETREGS, child, NULL, &regs);
			ptrace(PTRACE_SYSCALL, child, NULL, NULL);
			if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
				exit(0);
			regs.rax = (unsigned long long)-ENOENT;
			ptrace(PTRACE_SETREGS, child, NULL, &regs);
			entering = false;
		}
	}
}
#else
static void trace_child(void)
{
	die("ptrace", "written for x86-64");
}
#endif

/* Whoever cannot read of a process when it began may not take it for dead, nor itself, nor
 * may a child that comes and goes. */
static void lose_descriptors(void)
{
	struct rlimit none;
	pid_t child;

	getrlimit(RLIMIT_NOFILE, &none);
	none.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &none);
	child = fork();
	if (child == 0) {
		CUdeviceptr p;
		CUresult (*alloc)(CUdeviceptr *, size_t) = need("cuMemAlloc_v2");

		alloc(&p, CHUNK);
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static bool at_the_limit;

static void take(unsigned int hold)
{
	CUresult (*init)(unsigned int) = need("cuInit");
	CUresult (*get)(CUdevice *, int) = need("cuDeviceGet");
	CUresult (*create)(CUcontext *, unsigned int, CUdevice) = need("cuCtxCreate_v2");
	CUresult (*info)(size_t *, size_t *) = need("cuMemGetInfo_v2");
	CUresult (*alloc)(CUdeviceptr *, size_t) = need("cuMemAlloc_v2");
	size_t free_bytes = 0, total = 0;
	uint64_t granted = 0;
	CUresult r;
	CUcontext context;
	CUdeviceptr p;
	CUdevice device;

	if ((r = init(0)) || (r = get(&device, 0)) || (r = create(&context, 0, device))) {
		printf("{\"cmd\":\"fill\",\"result\":%d,\"error\":\"no context\"}\n", (int)r);
		return;
	}
	while (granted < MOST && (r = alloc(&p, CHUNK)) == 0)
		granted += CHUNK;
	for (int i = 0; at_the_limit && i < 3; i++) {
		lose_descriptors();
		while (granted < MOST && (r = alloc(&p, CHUNK)) == 0)
			granted += CHUNK;
	}
	info(&free_bytes, &total);
	printf("{\"cmd\":\"fill\",\"total\":%zu,\"free\":%zu,\"granted\":%llu,\"result\":%d,"
	       "\"error\":\"%s\"}\n",
	       total, free_bytes, (unsigned long long)granted, (int)r, r ? "refused" : "");
	fflush(stdout);
	sleep(hold);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: vgpu-escape dlsym|path:FILE|copy:FILE|deepbind:FILE|"
				"dlmopen:FILE|elf|descriptors|limit|filter|"
				"ptrace "
				"[HOLD_SECONDS]\n");
		return 2;
	}
	find = strcmp(way, "elf") ? by_dlsym : by_elf;
#ifndef ESCAPE_STATIC
	open_library(way);
#else
	stand_in(strncmp(way, "path:", 5) ? "libcuda.so.1" : way + 5);
#endif
	if (!strcmp(way, "descriptors"))
		call_without_descriptors();
	else if (!strcmp(way, "limit"))
		at_the_limit = true;
	else if (!strcmp(way, "filter"))
		hide_grant();
	else if (!strcmp(way, "ptrace"))
		trace_child();
	take(argc > 2 ? (unsigned int)atoi(argv[2]) : 0);
	return 0;
}
