/* SPDX-License-Identifier: Apache-2.0 */
/* death_test.c - whose death a slot notes, what exec leaves behind, and that only a
 * process of which it is certain has ended. */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cache.h"

/* Whoever saw the death of a slot's last owner may note it when the slot is
 * another's already: that one has its own grace all the same. */
static void test_a_note_of_another_death_is_none(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	pid_t child = fork();
	uint64_t began;

	if (child == 0) {
		struct vgpu_slot *s = claim(&c);

		_exit(s && vgpu_mem_reserve(&c, s, 0, 900, LIMIT, 0) == 0 ? 0 : 1);
	}
	CHECK(waitpid(child, NULL, 0) == child);
	c.slots[1].died_ns = vgpu_death_note(c.slots[1].owner ^ 1, 1 << 20);
	began = now_ms();
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1000, LIMIT, 0), 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
}

/* After exec a process has its pid and start time still, but not its memory. */
static void test_exec_leaves_no_memory_behind(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *old = claim(&c), *mine;
	uint64_t began;

	CHECK_EQ(vgpu_mem_reserve(&c, old, 0, 900, LIMIT, 0), 0);
	mine = claim(&c); /* as the next program does */
	CHECK(mine && mine != old);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 900);
	began = now_ms();
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1000, LIMIT, 0), 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
	CHECK_EQ(old->owner, 0);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 1000);
}

static void set_descriptors(rlim_t n)
{
	struct rlimit r;

	CHECK(getrlimit(RLIMIT_NOFILE, &r) == 0);
	r.rlim_cur = n;
	CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
}

/* A process with a slot and so much memory, which sleeps as another user would see it. */
static pid_t start_peer(struct vgpu_cache *c, uint64_t bytes, uid_t user, bool hidden)
{
	int ready[2];
	char byte;
	pid_t pid;

	CHECK(pipe(ready) == 0);
	pid = fork();
	if (pid == 0) {
		struct vgpu_slot *s;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (user && (setgroups(0, NULL) || setgid(user) || setuid(user)))
			_exit(1);
		prctl(PR_SET_DUMPABLE, !hidden);
		s = claim(c);
		if (!s || vgpu_mem_reserve(c, s, 0, bytes, LIMIT, 0) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	return pid;
}

static void end_peer(pid_t pid)
{
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
}

/* Without a free descriptor no start time can be read: all processes count as alive. */
static void test_without_descriptors_all_live(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	pid_t peer = start_peer(&c, 300, 0, false), child;
	struct rlimit before;
	int status;

	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 700, LIMIT, 0), 0);
	set_descriptors(0);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1, LIMIT, 0), -ENOMEM);
	/* A child without one has a slot of its own, and leaves the others alone. */
	child = fork();
	if (child == 0) {
		struct vgpu_slot *s =
			vgpu_slot_claim(&c, (uint32_t)getpid(), vgpu_own_start_time());

		_exit(s && s != mine && vgpu_mem_reserve(&c, s, 0, 1, LIMIT, 0) == -ENOMEM ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1, LIMIT, 0), -ENOMEM);
	CHECK_EQ(vgpu_mem_sum(&c, 0), LIMIT);
	/* There is no such process: that needs no descriptor. */
	end_peer(peer);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 300, LIMIT, 0), 0);
	set_descriptors(before.rlim_cur);
	CHECK_EQ(vgpu_mem_sum(&c, 0), LIMIT);
}

#define NOBODY 65534

/* What /proc hides: the peer's own user may not look at it, but it lives. */
static void test_hidden_processes_live(void)
{
	static const char *const hide[] = {"hidepid=0", "hidepid=1", "hidepid=2"};

	if (geteuid() != 0)
		printf("death: only root has processes of another user\n");
	for (unsigned i = 0; i < 3 && geteuid() == 0; i++) {
		struct vgpu_cache c = new_cache();
		pid_t peer = start_peer(&c, 900, NOBODY, true), child = fork();
		int status;

		if (child == 0) {
			struct vgpu_slot *s;

			if (unshare(CLONE_NEWNS) ||
			    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
			    mount("proc", "/proc", "proc", 0, hide[i]) || setgroups(0, NULL) ||
			    setgid(NOBODY) || setuid(NOBODY))
				_exit(77);
			s = claim(&c);
			_exit(s && vgpu_mem_reserve(&c, s, 0, 200, LIMIT, 0) == -ENOMEM ? 0 : 1);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
		if (WEXITSTATUS(status) == 77)
			printf("death: no mount namespace here\n");
		else
			CHECK_EQ(WEXITSTATUS(status), 0);
		CHECK_EQ(c.slots[0].card[0].mem, 900);
		end_peer(peer);
	}
}

/* The sandbox denies files and ends a process that calls kill. In it, all processes count as alive.
 * early: the process takes its slot before it enters the sandbox. least: the smallest peak of memory, after
 * an allocation next to a living process. */
static void in_a_sandbox(bool early, uint64_t had, uint64_t bytes, int want, uint64_t least)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_kill, 1, 2),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	struct vgpu_cache c = new_cache();
	pid_t peer = start_peer(&c, had, 0, false), child = fork();
	int status;

	if (child == 0) {
		uint64_t start = vgpu_own_start_time();
		struct vgpu_slot *s = early ? claim(&c) : NULL;

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
			_exit(2);
		if (!early)
			s = vgpu_slot_claim(&c, (uint32_t)getpid(), start);
		_exit(s && vgpu_mem_reserve(&c, s, 0, bytes, LIMIT, 0) == want ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	CHECK(c.header->mem_peak[0] >= least);
	end_peer(peer);
}

static void test_in_a_sandbox_all_live(void)
{
	in_a_sandbox(true, 900, 200, -ENOMEM, 0);
	in_a_sandbox(true, 100, 200, 0, 300);
	in_a_sandbox(false, 100, 200, 0, 300);
}

/* In another time namespace the same start time reads differently. */
static void test_other_time_namespaces_prove_nothing(void)
{
	struct vgpu_cache c = new_cache();
	pid_t peer, child = fork();
	int status;

	if (child == 0) {
		/* A peer without an entry of its own there: it was here before. */
		FILE *f;

		peer = start_peer(&c, 900, 0, false);
		if (unshare(0x80 /* CLONE_NEWTIME */) ||
		    !(f = fopen("/proc/self/timens_offsets", "w")) ||
		    fputs("boottime 864000 0\nmonotonic 864000 0\n", f) < 0 || fclose(f))
			_exit(77);
		child = fork(); /* is in it */
		if (child == 0) {
			struct vgpu_slot *s = claim(&c);

			_exit(s && vgpu_mem_reserve(&c, s, 0, 200, LIMIT, 0) == -ENOMEM ? 0 : 1);
		}
		waitpid(child, &status, 0);
		end_peer(peer);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		printf("death: no time namespace here\n");
	else
		CHECK_EQ(WEXITSTATUS(status), 0);
}

int main(void)
{
	test_without_descriptors_all_live();
	test_hidden_processes_live();
	if (!emulated()) /* QEMU has no filters */
		test_in_a_sandbox_all_live();
	test_other_time_namespaces_prove_nothing();
	test_a_note_of_another_death_is_none();
	test_exec_leaves_no_memory_behind();
	return done("death");
}
