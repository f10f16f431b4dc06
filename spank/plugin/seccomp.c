/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Without user namespaces a job cannot become root of its own mounts, and so
 * cannot cover the files that taskenv.c has bound. Costs rootless containers,
 * so a site asks for it (seccomp=1 in plugstack.conf).
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "plugin.h"

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#define COMPAT_ARCH AUDIT_ARCH_I386
#define COMPAT_CLONE 120
#define COMPAT_UNSHARE 310
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#define COMPAT_ARCH AUDIT_ARCH_ARM
#define COMPAT_CLONE 120
#define COMPAT_UNSHARE 337
#else
#error "seccomp.c: add the system call numbers of this architecture"
#endif

#define X32_BIT 0x40000000u /* x86-64 calls of the x32 ABI; on other machines no call has it */
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF_EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))

/* clone3 has its flags in memory, where a filter cannot look: "not implemented"
 * makes the C library use clone. The flags of clone and unshare are the first
 * argument, their low half holds CLONE_NEWUSER. Jumps count from the next
 * statement; the numbers on the left are for counting. */
static struct sock_filter filter[] = {
	/*  0 */ LOAD(arch),
	/*  1 */ IF_EQUAL(NATIVE_ARCH, 5, 0),
	/*  2 */ IF_EQUAL(COMPAT_ARCH, 0, 12),
	/*  3 */ LOAD(nr),
	/*  4 */ IF_EQUAL(COMPAT_CLONE, 6, 0),
	/*  5 */ IF_EQUAL(COMPAT_UNSHARE, 5, 0),
	/*  6 */ BPF_STMT(BPF_JMP | BPF_JA, 3), /* to 10 */
	/*  7 */ LOAD(nr),
	/*  8 */ IF_EQUAL(__NR_clone, 2, 0),
	/*  9 */ IF_EQUAL(__NR_unshare, 1, 0),
	/* 10 */ IF_EQUAL(__NR_clone3, 4, 3), /* clone3 is 435 on every machine */
	/* 11 */ LOAD(args[0]),
	/* 12 */ BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER, 0, 3),
	/* 13 */ RETURN(SECCOMP_RET_ERRNO | EPERM),
	/* 14 */ BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1),
	/* 15 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
	/* 16 */ RETURN(SECCOMP_RET_ALLOW),
};

/* Root may install a filter without no_new_privs, so set-user-id programs keep
 * working in the job. */
int vgpu_seccomp_no_user_namespaces(struct vgpu_why *why)
{
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]),
		.filter = filter,
	};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return vgpu_because(why, "seccomp filter: %s", strerror(errno));
	return 0;
}
