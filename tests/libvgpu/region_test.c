/* SPDX-License-Identifier: Apache-2.0 */
/* region_test.c - slots, memory protocol and budget of region_ops.c, also with
 * many processes that are killed at random. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"

/* region_ops.c is compiled with VGPU_PAUSE(step) calling this. */
static int kill_at;

void test_pause(int step);
void test_pause(int step)
{
	if (step == kill_at)
		raise(SIGKILL);
}

/* Lets the grace of everybody who has died run out, and cleans up. */
static void reclaim_all(struct vgpu_cache *c)
{
	reclaim(c);
	nanosleep(&(struct timespec){.tv_nsec = VGPU_GRACE_NS + 1000000}, NULL);
	reclaim(c);
}

static void test_validity(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_grant bad = grant;

	CHECK(vgpu_grant_valid(&grant, sizeof grant));
	CHECK(!vgpu_grant_valid(&grant, sizeof grant - 1));
	bad.version++;
	CHECK(!vgpu_grant_valid(&bad, sizeof bad));
	bad = grant;
	bad.ncards = VGPU_MAX_CARDS + 1;
	CHECK(!vgpu_grant_valid(&bad, sizeof bad));
	CHECK(vgpu_cache_valid(c.header, VGPU_CACHE_SIZE));
	CHECK(!vgpu_cache_valid(c.header, VGPU_CACHE_SIZE - 1));
	c.header->max_slots = VGPU_MAX_SLOTS + 1;
	CHECK(!vgpu_cache_valid(c.header, VGPU_CACHE_SIZE));
}

static void test_limit_is_exact(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *a = claim(&c);

	CHECK(a);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 600, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 400, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 1, LIMIT, 0), -ENOMEM);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 1000);
	vgpu_mem_release(a, 0, 1);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, 1, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 0, UINT64_MAX, LIMIT, 0), -ENOMEM);
	/* Another card has its own limit. */
	CHECK_EQ(vgpu_mem_reserve(&c, a, 1, LIMIT, LIMIT, 0), 0);
	/* No limit: counted all the same. */
	CHECK_EQ(vgpu_mem_reserve(&c, a, 2, 1u << 30, 0, 0), 0);
	CHECK_EQ(vgpu_mem_sum(&c, 2), 1 << 30);
	/* What gresd measured beside the slots counts too, in both directions. */
	CHECK_EQ(vgpu_mem_reserve(&c, a, 3, 900, LIMIT, 101), -ENOMEM);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 3, 900, LIMIT, 100), 0);
	CHECK_EQ(vgpu_mem_reserve(&c, a, 3, 150, LIMIT, -50), 0);
	/* More released than held never wraps. */
	vgpu_mem_release(a, 0, 5000);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 0);
}

static void test_dead_process_is_reclaimed(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	pid_t child = fork();
	uint64_t began;
	int status;

	if (child == 0) {
		struct vgpu_slot *s = claim(&c);

		if (!s || vgpu_mem_reserve(&c, s, 0, 900, LIMIT, 0))
			_exit(1);
		raise(SIGKILL);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	CHECK_EQ(vgpu_mem_sum(&c, 0), 900);
	/* It does not fit beside the dead one's bytes: they are taken back, when the
	 * driver has had time to free them. */
	began = now_ms();
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1000, LIMIT, 0), 0);
	CHECK(now_ms() - began >= VGPU_GRACE_NS / 1000000);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 1000);
	CHECK_EQ(c.slots[1].owner, 0);
}

/* The owner's death was noted long ago. */
static void long_dead(struct vgpu_slot *slot)
{
	slot->died_ns = vgpu_death_note(slot->owner, 1 << 20);
}

static void test_zombie_is_dead(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	pid_t child = fork();
	siginfo_t info;

	if (child == 0) {
		struct vgpu_slot *s = claim(&c);

		_exit(s && vgpu_mem_reserve(&c, s, 0, 900, LIMIT, 0) == 0 ? 0 : 1);
	}
	/* Ended, but not waited for. */
	CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 500, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 500);
	waitpid(child, NULL, 0);
}

static void test_reused_pid_is_not_the_owner(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);
	uint32_t parent = (uint32_t)getppid();

	/* A living pid with another start time: its process has ended. */
	c.slots[1].owner = vgpu_owner(parent, vgpu_start_time(parent) + 1);
	c.slots[1].card[0].mem = 700;
	c.header->high_slot = 2;
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 800, LIMIT, 0), 0);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 800);
	/* The same pid with its start time lives: nothing is taken. */
	c.slots[1].owner = vgpu_owner(parent, vgpu_start_time(parent));
	c.slots[1].card[0].mem = 700;
	CHECK_EQ(reclaim(&c), 0);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 1, LIMIT, 0), -ENOMEM);
}

/* Runs f in a process of a new PID namespace, with a /proc of that namespace or
 * the one that is there. Says false where that is not allowed. */
static bool in_new_pid_ns(struct vgpu_cache *c, bool own_proc, int (*f)(struct vgpu_cache *))
{
	pid_t outer = fork(), inner;
	int status;

	if (outer == 0) {
		if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 ||
		    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
			_exit(77);
		inner = fork();
		if (inner == 0) {
			if (own_proc && mount("proc", "/proc", "proc", 0, NULL) != 0)
				_exit(77);
			_exit(f(c));
		}
		waitpid(inner, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
	}
	waitpid(outer, &status, 0);
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		return false;
	CHECK_EQ(WEXITSTATUS(status), 0);
	return true;
}

static int take_300(struct vgpu_cache *c)
{
	struct vgpu_slot *s = vgpu_slot_claim(c, (uint32_t)getpid(), vgpu_own_start_time());

	return s && vgpu_mem_reserve(c, s, 0, 300, LIMIT, 0) == 0 ? 0 : 1;
}

/* The other namespace's processes are all dead by this one's numbers. */
static int reclaims_nothing(struct vgpu_cache *c)
{
	uint64_t before = vgpu_mem_sum(c, 0);

	if (take_300(c) != 0)
		return 2;
	reclaim_all(c);
	return reclaim(c) == 0 && vgpu_mem_sum(c, 0) == before + 300 ? 0 : 3;
}

static void test_other_pid_namespaces(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *mine = claim(&c);

	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 100, LIMIT, 0), 0);
	if (!in_new_pid_ns(&c, true, reclaims_nothing)) {
		printf("region: PID namespaces are not allowed here\n");
		return;
	}
	CHECK(in_new_pid_ns(&c, false, reclaims_nothing));
	/* Both have ended, and nobody of their namespaces is left to say so: their
	 * bytes count on, and what does not fit beside them is refused. */
	reclaim_all(&c);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 700);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 301, LIMIT, 0), -ENOMEM);
	CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, 300, LIMIT, 0), 0);
	CHECK(c.slots[1].pid_ns != 0 && c.slots[1].pid_ns != vgpu_pid_ns());
	CHECK_EQ(VGPU_OWNER_NS(c.slots[2].owner), VGPU_NS_UNKNOWN);
	/* Their slots are not taken either. */
	CHECK(claim(&c) == &c.slots[3]);
}

static void test_slots_are_reused(void)
{
	struct vgpu_cache c = new_cache();

	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		int status;

		if (child == 0)
			_exit(claim(&c) ? 0 : 1);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		reclaim_all(&c);
	}
	/* Every process took the slot of the one before it. */
	CHECK_EQ(c.header->high_slot, 1);
}

/* ---------------------------------------------------- many at once, killed */
#define WORKERS 8
#define ROUNDS 400

struct shared {
	int64_t truly_held; /* bytes that are kept, as the workers see it */
	int64_t worst;
	int stop;
};

static void worker(struct vgpu_cache *c, unsigned seed)
{
	/* QEMU tells a process that was forked the start of its parent. */
	uint64_t start = emulated() ? 0 : vgpu_own_start_time(), held = 0;
	struct vgpu_slot *s = vgpu_slot_claim(c, (uint32_t)getpid(), start);

	for (;;) {
		uint64_t n = (uint64_t)(rand_r(&seed) % 400 + 1);

		if (held + n <= LIMIT && vgpu_mem_reserve(c, s, 0, n, LIMIT, 0) == 0)
			held += n;
		if (rand_r(&seed) % 3 == 0 && held) {
			vgpu_mem_release(s, 0, held);
			held = 0;
		}
	}
}

/* Killed at each numbered step in turn: the next process that needs the memory
 * gets all of it, and the slot. */
#define STEPS 10

static void test_killed_at_every_step(void)
{
	for (int step = 1; step <= STEPS; step++) {
		struct vgpu_cache c = new_cache();
		struct vgpu_slot *mine;
		pid_t dead = fork(), child;
		int status;

		/* A dead process's slot, so that claiming and reclaiming have work. */
		if (dead == 0) {
			mine = claim(&c);
			_exit(mine && vgpu_mem_reserve(&c, mine, 0, 800, LIMIT, 0) == 0 ? 0 : 1);
		}
		CHECK(waitpid(dead, &status, 0) == dead && status == 0);
		long_dead(&c.slots[0]);
		c.slots[1].died_ns = c.slots[0].died_ns;
		child = fork();
		if (child == 0) {
			kill_at = step == 1 || step == 2 || step == 3 ? step : 0;
			c.slots[1].owner = c.slots[0].owner; /* a second dead slot */
			c.header->high_slot = 2;
			mine = claim(&c);
			kill_at = step;
			if (mine)
				vgpu_mem_reserve(&c, mine, 0, 300, LIMIT, 0);
			if (mine)
				vgpu_mem_reserve(&c, mine, 0, 900, LIMIT, 0);
			if (mine) {
				vgpu_mem_release(mine, 0, 300);
				vgpu_slot_release(mine);
			}
			_exit(9); /* the step was never reached */
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		mine = claim(&c);
		CHECK(mine);
		CHECK_EQ(vgpu_mem_reserve(&c, mine, 0, LIMIT, LIMIT, 0), 0);
		CHECK_EQ(vgpu_mem_sum(&c, 0), LIMIT);
	}
}

static void test_killed_workers_never_exceed(void)
{
	struct vgpu_cache c = new_cache();
	struct vgpu_slot *me;
	pid_t pid[WORKERS];
	unsigned seed = 7;
	uint64_t worst = 0;

	for (int i = 0; i < WORKERS; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			worker(&c, (unsigned)i + 1);
	}
	for (int r = 0; r < ROUNDS; r++) {
		int victim = (int)(rand_r(&seed) % WORKERS);
		uint64_t kept = 0;

		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
		kill(pid[victim], SIGKILL);
		waitpid(pid[victim], NULL, 0);
		/* With all stopped, what is announced beyond the limit can only be
		 * an announcement that was about to be checked. */
		if (r % 20 == 0) {
			int tentative = 0;

			for (int i = 0; i < WORKERS; i++)
				if (i != victim)
					kill(pid[i], SIGSTOP);
			reclaim(&c);
			for (uint32_t i = 0; i < c.header->high_slot; i++)
				if (c.slots[i].owner)
					kept += c.slots[i].card[0].mem, tentative++;
			CHECK(kept <= LIMIT + (uint64_t)tentative * 400);
			if (kept > worst)
				worst = kept;
			for (int i = 0; i < WORKERS; i++)
				if (i != victim)
					kill(pid[i], SIGCONT);
		}
		pid[victim] = fork();
		if (pid[victim] == 0)
			worker(&c, (unsigned)r + 100);
	}
	for (int i = 0; i < WORKERS; i++) {
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
	}
	CHECK(worst > 0);
	reclaim_all(&c);
	CHECK_EQ(vgpu_mem_sum(&c, 0), 0);
	me = claim(&c);
	CHECK(me);
	CHECK_EQ(vgpu_mem_reserve(&c, me, 0, LIMIT, LIMIT, 0), 0);
}

/* What is kept, counted by the threads themselves after each success, must
 * never be above the limit at any instant. */
static struct vgpu_cache thread_cache;
static int64_t kept_now, kept_worst;

static void *thread_worker(void *arg)
{
	struct vgpu_slot *s = &thread_cache.slots[(intptr_t)arg];
	unsigned seed = (unsigned)(intptr_t)arg + 1;

	for (int i = 0; i < 4000; i++) {
		uint64_t n = (uint64_t)(rand_r(&seed) % 500 + 1);

		if (vgpu_mem_reserve(&thread_cache, s, 0, n, LIMIT, 0) == 0) {
			int64_t now = __atomic_add_fetch(&kept_now, (int64_t)n, __ATOMIC_SEQ_CST);
			int64_t worst = __atomic_load_n(&kept_worst, __ATOMIC_SEQ_CST);

			while (now > worst &&
			       !__atomic_compare_exchange_n(&kept_worst, &worst, now, false,
							    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
				;
			__atomic_sub_fetch(&kept_now, (int64_t)n, __ATOMIC_SEQ_CST);
			vgpu_mem_release(s, 0, n);
		}
	}
	return NULL;
}

static void test_threads_never_keep_more(void)
{
	pthread_t t[4];
	uint32_t pid = (uint32_t)getpid();

	thread_cache = new_cache();
	for (int i = 0; i < 4; i++)
		thread_cache.slots[i].owner = vgpu_owner(pid, vgpu_start_time(pid));
	thread_cache.header->high_slot = 4;
	for (intptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, thread_worker, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK(kept_worst > 0);
	CHECK(kept_worst <= LIMIT);
	CHECK_EQ(vgpu_mem_sum(&thread_cache, 0), 0);
}

/* ------------------------------------------------------------------- budget */
static void test_budget(void)
{
	struct vgpu_budget b = {0};

	vgpu_budget_refill(&b, 1000000, 30, 5000);
	CHECK_EQ(b.balance_ns, 5000); /* starts with the burst */
	b.balance_ns = -3000;
	CHECK_EQ(vgpu_budget_wait(&b, 30, 1), 10003); /* (3000 + 1) * 100 / 30 */
	vgpu_budget_refill(&b, 1010000, 30, 5000);
	CHECK_EQ(b.balance_ns, 0);
	vgpu_budget_refill(&b, 1110000, 30, 35000);
	CHECK_EQ(b.balance_ns, 30000); /* no more than it may have */
	CHECK_EQ(vgpu_budget_wait(&b, 30, 1), 0);
	vgpu_budget_refill(&b, 1110010, 30, 5000);
	CHECK_EQ(b.balance_ns, 5000);
	/* Time does not run backwards. */
	vgpu_budget_refill(&b, 1000000, 30, 5000);
	CHECK_EQ(b.balance_ns, 5000);
	CHECK_EQ(b.refilled_ns, 1110010);
	/* The time of another boot or time namespace lies ahead: it begins anew, with no
	 * more than a burst. */
	b.refilled_ns = 2000000 + 1000000000000000;
	b.balance_ns = -3000;
	vgpu_budget_refill(&b, 2000000, 30, 5000);
	CHECK_EQ(b.refilled_ns, 2000000);
	CHECK_EQ(b.balance_ns, -3000);
	vgpu_budget_refill(&b, 2010000, 30, 5000);
	CHECK_EQ(b.balance_ns, 0);
	b.refilled_ns += 1000000000000000;
	b.balance_ns = 1000000000;
	vgpu_budget_refill(&b, 2020000, 30, 5000);
	CHECK_EQ(b.balance_ns, 5000);
}

static void test_schedule_seqlock(void)
{
	struct vgpu_grant g = grant;
	struct vgpu_schedule s = {0};

	g.card[0].cores = 30;
	g.card[0].slice_us = 6000;
	CHECK(vgpu_schedule_read(&g, 0, &s, 0));
	CHECK_EQ(s.cores, 30);
	CHECK_EQ(s.slice_us, 6000);
	g.card[0].seq = 1; /* a writer was killed while writing */
	CHECK(!vgpu_schedule_read(&g, 0, &s, 0));
}

/* A gate that is open because neighbours hold the job shuts when gresd is gone. */
static void test_schedule_lease(void)
{
	struct vgpu_grant g = grant;
	struct vgpu_schedule s = {0};

	g.card[0].lease_ns = 1000;
	CHECK(vgpu_schedule_read(&g, 0, &s, 1000));
	CHECK_EQ(s.gate, 0);
	g.card[0].gate = VGPU_GATE_MEASURE;
	CHECK(vgpu_schedule_read(&g, 0, &s, 1001));
	CHECK_EQ(s.gate, VGPU_GATE_BUDGET);
	g.card[0].gate = 0;
	g.card[0].lease_ns = 0; /* it counts on nobody */
	CHECK(vgpu_schedule_read(&g, 0, &s, UINT64_MAX));
	CHECK_EQ(s.gate, 0);
}

int main(void)
{
	grant.magic = VGPU_GRANT_MAGIC;
	grant.version = VGPU_REGION_VERSION;
	grant.size = sizeof grant;
	grant.ncards = 3;
	test_validity();
	test_limit_is_exact();
	test_dead_process_is_reclaimed();
	test_zombie_is_dead();
	test_reused_pid_is_not_the_owner();
	test_other_pid_namespaces();
	test_slots_are_reused();
	test_budget();
	test_schedule_seqlock();
	test_schedule_lease();
	test_threads_never_keep_more();
	test_killed_at_every_step();
	test_killed_workers_never_exceed();
	return done("region");
}
