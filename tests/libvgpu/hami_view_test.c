/* SPDX-License-Identifier: Apache-2.0 */
/* hami_view_test.c - the view at the offsets of HAMi-core v1.2, also with writers that are killed. */
#define _GNU_SOURCE
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../libvgpu/hami_view.h"
#include "check.h"

#define SECOND 1000000000ull
#define START (1700000000ull * SECOND)
#define UUID0 "GPU-00000000-0000-0000-0000-000000000001"
#define UUID1 "GPU-00000000-0000-0000-0000-000000000002"

/* Offsets written out once more: other programs read the bytes there. */
#define PROC(i) (1856 + (i) * 1960)
#define USED(card) (8 + (card) * 64)
#define SM_UTIL(card) (1160 + (card) * 48 + 16)
#define SEQLOCK 1936
#define PROC_NUM 2008896

struct file {
	char *start;
	struct vgpu_cache cache;
	uint64_t now;
};

static struct vgpu_grant grant;

static struct file new_file(void)
{
	struct file f = {.now = START};
	int flags = MAP_SHARED | MAP_ANONYMOUS;

	f.start = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
	CHECK(f.start != MAP_FAILED);
	f.cache.header = (void *)(f.start + VGPU_CACHE_OFFSET);
	f.cache.slots = (void *)(f.start + VGPU_SLOTS_OFFSET);
	vgpu_cache_init(f.cache.header, &grant);
	return f;
}

static void drop(struct file *f)
{
	munmap(f->start, VGPU_CACHE_SIZE);
}

static void update(struct file *f)
{
	vgpu_hami_view_update(f->start, &grant, &f->cache, f->now);
	f->now += SECOND;
}

static uint64_t u64(const struct file *f, size_t at)
{
	return __atomic_load_n((uint64_t *)(f->start + at), __ATOMIC_SEQ_CST);
}

static int32_t i32(const struct file *f, size_t at)
{
	return __atomic_load_n((int32_t *)(f->start + at), __ATOMIC_SEQ_CST);
}

static struct vgpu_slot *slot(struct file *f, uint32_t i, uint32_t pid)
{
	struct vgpu_slot *s = &f->cache.slots[i];

	s->owner = vgpu_owner(pid, 77);
	s->pid = pid;
	if (f->cache.header->high_slot < i + 1)
		f->cache.header->high_slot = i + 1;
	return s;
}

static bool all_zero(const struct file *f, size_t at, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (f->start[at + i])
			return false;
	return true;
}

static void test_head(void)
{
	struct file f = new_file();
	sem_t free_sem;

	update(&f);
	CHECK_EQ(i32(&f, 0), 19920718);
	CHECK_EQ(i32(&f, 4), 1);
	CHECK_EQ(i32(&f, 8), 2);
	CHECK(all_zero(&f, 12, 12)); /* sm_init_flag, owner_pid */
	CHECK_EQ(u64(&f, 56), 2);
	CHECK(strcmp(f.start + 64, UUID0) == 0);
	CHECK(strcmp(f.start + 64 + 96, UUID1) == 0);
	CHECK(all_zero(&f, 64 + 2 * 96, 14 * 96));
	CHECK_EQ(u64(&f, 1600), 8ull << 30);
	CHECK_EQ(u64(&f, 1608), 0);
	CHECK_EQ(u64(&f, 1728), 30);
	CHECK_EQ(u64(&f, 1736), 80);
	CHECK_EQ(i32(&f, PROC_NUM), 0);
	CHECK_EQ(i32(&f, 2008900), 1); /* utilization_switch: card 0 is gated */
	CHECK_EQ(i32(&f, 2008904), 0); /* recent_kernel */
	CHECK_EQ(i32(&f, 2008908), 0); /* priority: high */
	CHECK_EQ(u64(&f, 2008912), 0);
	/* Our own region begins where it did. */
	CHECK_EQ(u64(&f, VGPU_CACHE_OFFSET), (int64_t)VGPU_CACHE_MAGIC);
	CHECK(all_zero(&f, 2008952, 8));
	CHECK(all_zero(&f, 2008968, VGPU_CACHE_OFFSET - 2008968));
	/* Both semaphores are what this machine's library makes of a free one. */
	CHECK_EQ(sizeof free_sem, VGPU_HAMI_SEM_LEN);
	memset(&free_sem, 0, sizeof free_sem);
	CHECK(sem_init(&free_sem, 1, 1) == 0);
	CHECK(memcmp(f.start + 24, &free_sem, sizeof free_sem) == 0);
	CHECK(memcmp(f.start + 2008920, &free_sem, sizeof free_sem) == 0);
	drop(&f);
}

/* Without gresd, a process knows the entries of its own cards alone. The view shows all of them. */
static void test_entries_of_other_processes(void)
{
	struct file f = new_file();
	struct vgpu_grant both = grant;

	memset(f.cache.header->card_key, 1, 3 * sizeof(uint64_t));
	update(&f);
	grant.ncards = 1;
	memset(grant.card[0].uuid, 0, sizeof grant.card[0].uuid);
	update(&f);
	CHECK(u64(&f, 56) == 3 && u64(&f, 1600) == 8ull << 30 && !strcmp(f.start + 64, UUID0));
	grant = both;
	drop(&f);
}

static void test_limits_by_mode(void)
{
	static const struct {
		uint32_t mode, cores, ceiling;
		uint64_t shown;
	} cases[] = {
		{VGPU_MODE_HARD, 25, 0, 25},  {VGPU_MODE_HARD, 100, 50, 100},
		{VGPU_MODE_SOFT, 25, 0, 100}, {VGPU_MODE_SOFT, 25, 60, 60},
		{VGPU_MODE_OFF, 25, 60, 100},
	};
	struct vgpu_grant saved = grant;

	grant.card[0].priority = VGPU_PRIO_LOW;
	grant.card[0].gate = 0;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct file f = new_file();

		grant.card[0].mode = cases[i].mode;
		grant.card[0].cores = cases[i].cores;
		grant.card[0].ceiling = cases[i].ceiling;
		update(&f);
		CHECK_EQ(u64(&f, 1728), cases[i].shown);
		CHECK_EQ(i32(&f, 2008900), 0);
		CHECK_EQ(i32(&f, 2008908), 1); /* never 2: an index of an array of two */
		drop(&f);
	}
	/* A number of cards that no grant has does not reach past the arrays. */
	grant.ncards = 1000;
	struct file f = new_file();

	update(&f);
	CHECK_EQ(u64(&f, 56), 16);
	drop(&f);
	grant = saved;
}

static void test_process(void)
{
	struct file f = new_file();
	struct vgpu_slot *s = slot(&f, 0, 4217);

	s->host_pid = 99;
	s->card[0].mem = 1000;
	s->card[0].mem_context = 500;
	s->card[0].mem_module = 100;
	s->card[1].mem = 70;
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 1);
	CHECK_EQ(i32(&f, PROC(0)), 4217);
	CHECK_EQ(i32(&f, PROC(0) + 4), 99);
	CHECK_EQ(u64(&f, PROC(0) + USED(0)), 500);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 8), 100);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 16), 400);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 24), 0);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 1000);
	CHECK_EQ(u64(&f, PROC(0) + USED(1) + 32), 70);
	CHECK(all_zero(&f, PROC(0) + USED(2), 14 * 64));
	CHECK_EQ(u64(&f, PROC(0) + 1032), 1000);
	CHECK_EQ(u64(&f, PROC(0) + 1040), 70);
	CHECK_EQ(i32(&f, PROC(0) + 1928), 1);
	CHECK_EQ(u64(&f, PROC(0) + SEQLOCK) % 2, 0);
	CHECK(all_zero(&f, PROC(1), 1960));
	/* Kinds that lag behind never add up to more than the total. */
	s->card[0].mem = 300;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + USED(0)), 300);
	CHECK(all_zero(&f, PROC(0) + USED(0) + 8, 16));
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 300);
	s->card[0].mem = 550;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 8), 50);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 16), 0);
	drop(&f);
}

static void test_processes_come_and_go(void)
{
	struct file f = new_file();

	for (uint32_t i = 0; i < 4; i++)
		slot(&f, i, 100 + i)->card[0].mem = 1 + i;
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 4);
	/* A process that stays keeps its place. */
	vgpu_slot_release(&f.cache.slots[1]);
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 4);
	CHECK(all_zero(&f, PROC(1), SEQLOCK));
	CHECK_EQ(i32(&f, PROC(2)), 102);
	/* The last ones go: fewer are counted, and nothing stays behind them. */
	vgpu_slot_release(&f.cache.slots[2]);
	vgpu_slot_release(&f.cache.slots[3]);
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 1);
	for (int i = 1; i < 4; i++) {
		CHECK(all_zero(&f, PROC(i), SEQLOCK));
		CHECK(all_zero(&f, PROC(i) + SEQLOCK + 8, 16));
	}
	/* Another process in the same slot takes over nothing from the first. */
	f.cache.slots[0].owner = vgpu_owner(100, 78);
	f.cache.slots[0].card[0].gpu_ns = SECOND;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 0);
	drop(&f);
}

static void test_more_processes_than_fit(void)
{
	struct file f = new_file();

	slot(&f, 1023, 5)->card[0].mem = 7;
	slot(&f, 1024, 6)->card[0].mem = 8;
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 1024);
	CHECK_EQ(i32(&f, PROC(1023)), 5);
	CHECK_EQ(i32(&f, PROC(1022)), 0);
	f.cache.header->high_slot = UINT32_MAX; /* written over by its owner */
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 1024);
	CHECK_EQ(u64(&f, VGPU_CACHE_OFFSET), (int64_t)VGPU_CACHE_MAGIC);
	drop(&f);
}

static void test_utilisation(void)
{
	struct file f = new_file();
	struct vgpu_slot *s = slot(&f, 0, 4217);

	s->card[0].gpu_ns = 1000000000 * SECOND; /* before anybody looked */
	s->card[0].launches = 3;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 0);
	CHECK_EQ(i32(&f, 2008904), 2);
	CHECK_EQ(u64(&f, 2008912), 1700000000);
	s->card[0].gpu_ns += SECOND * 30 / 100;
	s->card[1].gpu_ns += 7 * SECOND; /* more than time went by */
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 30);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(1)), 100);
	/* Nothing launched: the time of the last launch stays. */
	CHECK_EQ(i32(&f, 2008904), 0);
	CHECK_EQ(u64(&f, 2008912), 1700000000);
	s->card[1].launches++;
	s->card[0].gpu_ns += SECOND;
	f.now += SECOND; /* two seconds since the last update */
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 50);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(1)), 0);
	CHECK_EQ(i32(&f, 2008904), 2);
	CHECK_EQ(u64(&f, 2008912), 1700000003);
	/* A counter that runs backwards, a clock that was set back. */
	s->card[0].gpu_ns = 0;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 0);
	s->card[0].gpu_ns = SECOND;
	f.now = START;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 0);
	s->card[0].gpu_ns += SECOND / 4;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + SM_UTIL(0)), 25);
	drop(&f);
}

static void test_one_update_a_period(void)
{
	struct file f = new_file();
	struct vgpu_slot *s = slot(&f, 0, 4217);

	update(&f);
	s->card[0].mem = 5;
	f.now = START + SECOND - 1;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 0);
	f.now = START - 1000; /* another process read the clock a little earlier */
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 0);
	f.now = START + SECOND;
	update(&f);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 5);
	drop(&f);
}

static void test_foreign_writers(void)
{
	struct file f = new_file();
	struct vgpu_slot *s = slot(&f, 0, 4217);

	/* A file of another version, with rubbish in it. */
	memset(f.start, 0xff, VGPU_HAMI_SIZE);
	s->card[0].mem = 5;
	update(&f);
	CHECK_EQ(i32(&f, 0), 19920718);
	CHECK_EQ(u64(&f, 56), 2);
	CHECK_EQ(u64(&f, 1616), 0); /* limit of a card that is not there */
	CHECK_EQ(i32(&f, PROC_NUM), 1);
	CHECK_EQ(u64(&f, PROC(0) + USED(0) + 32), 5);
	CHECK(all_zero(&f, PROC(0) + USED(2), 14 * 64));
	CHECK(all_zero(&f, PROC(1), SEQLOCK));
	CHECK(all_zero(&f, PROC(1023), SEQLOCK));
	CHECK_EQ(u64(&f, PROC(0) + SEQLOCK) % 2, 0);
	CHECK_EQ(u64(&f, PROC(1023) + SEQLOCK) % 2, 0);
	/* A tool that enters itself, holds a seqlock and changes limits. */
	memset(f.start + PROC(1), 1, SEQLOCK);
	f.start[PROC(0) + SEQLOCK] |= 1;
	f.start[PROC_NUM] = 2;
	f.start[1600] = 1;
	f.start[24] = 0; /* holds the semaphore: only its holder may post */
	update(&f);
	CHECK_EQ(i32(&f, PROC_NUM), 1);
	CHECK(all_zero(&f, PROC(1), SEQLOCK));
	CHECK_EQ(u64(&f, PROC(0) + SEQLOCK) % 2, 0);
	CHECK_EQ(u64(&f, 1600), 8ull << 30);
	CHECK_EQ(f.start[24], 0);
	/* Any of magic, major and minor that is not ours: all is made anew. */
	for (int at = 0; at <= 8; at += 4) {
		f.start[at]++;
		f.start[1720] = 1;
		update(&f);
		CHECK_EQ(u64(&f, 1720), 0);
		CHECK_EQ(f.start[24], 1);
		CHECK_EQ(i32(&f, 0), 19920718);
		CHECK_EQ(i32(&f, 4), 1);
		CHECK_EQ(i32(&f, 8), 2);
		update(&f);
	}
	drop(&f);
}

static void test_seqlock_moves(void)
{
	struct file f = new_file();
	uint64_t before;

	slot(&f, 0, 4217);
	update(&f);
	before = u64(&f, PROC(0) + SEQLOCK);
	update(&f);
	/* A reader that began before sees another number after. */
	CHECK_EQ(u64(&f, PROC(0) + SEQLOCK), (int64_t)before + 4);
	drop(&f);
}

/* ------------------------------------------- writers at once, killed anywhere */
#define WRITERS 3
#define KILLS 150
#define PROCS 6

/* Looks often while others write: no seqlock is ever odd, all is in bounds. */
static void look(const struct file *f, int times)
{
	for (int n = 0; n < times; n++) {
		int32_t num = i32(f, PROC_NUM), magic = i32(f, 0);
		bool odd = false, bad = false;

		for (int i = 0; i < PROCS; i++) {
			uint64_t total = u64(f, PROC(i) + USED(0) + 32);

			odd |= u64(f, PROC(i) + SEQLOCK) & 1;
			bad |= total != 0 && total != 1000;
			bad |= u64(f, PROC(i) + SM_UTIL(0)) > 100;
		}
		CHECK(!odd && !bad);
		CHECK(num >= 0 && num <= PROCS);
		CHECK(magic == 0 || magic == 19920718);
	}
}

static void write_for_ever(struct file *f, uint64_t *clock)
{
	unsigned n = 0;

	for (;;) {
		/* Slots come and go, so that there is always something to change. */
		struct vgpu_slot *s = &f->cache.slots[1 + n++ % (PROCS - 1)];
		uint64_t owner = __atomic_load_n(&s->owner, __ATOMIC_SEQ_CST);

		__atomic_store_n(&s->owner, owner ? 0 : vgpu_owner(900, n), __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&f->cache.slots[0].card[0].gpu_ns, SECOND / 2, __ATOMIC_SEQ_CST);
		f->now = __atomic_add_fetch(clock, SECOND, __ATOMIC_SEQ_CST);
		update(f);
	}
}

static void test_killed_writers(void)
{
	struct file f = new_file();
	uint64_t *clock =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[WRITERS];
	unsigned seed = 3;

	CHECK(clock != MAP_FAILED);
	*clock = START;
	for (uint32_t i = 0; i < PROCS; i++)
		slot(&f, i, 100 + i)->card[0].mem = 1000;
	for (int i = 0; i < WRITERS; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			write_for_ever(&f, clock);
	}
	for (int k = 0; k < KILLS; k++) {
		int victim = (int)(rand_r(&seed) % WRITERS);

		look(&f, 50);
		nanosleep(&(struct timespec){.tv_nsec = rand_r(&seed) % 200000}, NULL);
		kill(pid[victim], SIGKILL);
		waitpid(pid[victim], NULL, 0);
		pid[victim] = fork();
		if (pid[victim] == 0)
			write_for_ever(&f, clock);
	}
	for (int i = 0; i < WRITERS; i++) {
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
	}
	CHECK(*clock > START + KILLS * SECOND);
	look(&f, 1);
	/* The next update puts all right. */
	for (uint32_t i = 0; i < PROCS; i++)
		f.cache.slots[i].owner = i % 2 ? 0 : vgpu_owner(100 + i, 77);
	f.now = *clock + 5 * SECOND;
	update(&f);
	for (int i = 0; i < PROCS; i++) {
		CHECK_EQ(i32(&f, PROC(i)), i % 2 ? 0 : 100 + i);
		CHECK_EQ(u64(&f, PROC(i) + USED(0) + 32), i % 2 ? 0 : 1000);
	}
	CHECK_EQ(i32(&f, PROC_NUM), PROCS - 1);
	munmap(clock, 4096);
	drop(&f);
}

int main(void)
{
	grant.magic = VGPU_GRANT_MAGIC;
	grant.version = VGPU_REGION_VERSION;
	grant.size = sizeof grant;
	grant.ncards = 2;
	strcpy(grant.card[0].uuid, UUID0);
	grant.card[0].mem_limit = 8ull << 30;
	grant.card[0].mode = VGPU_MODE_HARD;
	grant.card[0].cores = 30;
	grant.card[0].gate = 1;
	grant.card[0].priority = VGPU_PRIO_HIGH;
	strcpy(grant.card[1].uuid, UUID1);
	grant.card[1].mode = VGPU_MODE_SOFT;
	grant.card[1].cores = 20;
	grant.card[1].ceiling = 80;
	test_head();
	test_entries_of_other_processes();
	test_limits_by_mode();
	test_process();
	test_processes_come_and_go();
	test_more_processes_than_fit();
	test_utilisation();
	test_one_update_a_period();
	test_foreign_writers();
	test_seqlock_moves();
	test_killed_writers();
	return done("hami_view");
}
