/* SPDX-License-Identifier: Apache-2.0 */
/* door_test.c - memory that is asked of the kernel driver without libcuda: charged, refused, given
 * back, and told as the share. */
#include "child.h"
#include "door.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static void test_charge_and_free(void)
{
	fresh(1);
	CHECK_EQ(attached, 2);
	CHECK_EQ(take_object(1, 3 * MIB), 0);
	used(4 * MIB); /* as it was rounded */
	CHECK_EQ(watchers, 1);
	CHECK_EQ(take_object(2, 6 * MIB), 0);
	used(10 * MIB);
	driver.status = STATUS_OBJECT_NOT_FOUND;
	CHECK_EQ(free_named(CLIENT, 1), STATUS_OBJECT_NOT_FOUND);
	used(10 * MIB);
	driver.status = 0;
	CHECK_EQ(free_named(CLIENT, 99), 0);
	CHECK_EQ(free_named(CLIENT + 1, 1), 0);
	used(10 * MIB);
	CHECK_EQ(free_named(CLIENT, 1), 0);
	used(6 * MIB);
	/* The handle may be the kernel's. */
	driver.given = 77;
	CHECK_EQ(take_object(0, 2 * MIB), 0);
	CHECK_EQ(free_named(CLIENT, 77), 0);
	used(6 * MIB);
	/* One of that name was gone with its descriptor. */
	CHECK_EQ(take_object(2, 2 * MIB), 0);
	used(2 * MIB);
	/* The driver's own refusal. */
	driver.status = STATUS_NO_MEMORY;
	CHECK_EQ(take_object(3, 2 * MIB), STATUS_NO_MEMORY);
	used(2 * MIB);
	CHECK_EQ(refusals, 0);
}

static void test_refused(void)
{
	struct rm_vid_heap h = heap_of(5, 8 * GIB);
	struct rm_memory_params p = {.size = 8 * GIB};
	struct rm_alloc old = {.root = CLIENT,
			       .parent = DEVICE,
			       .object = 7,
			       .cls = CLASS_LOCAL_USER};
	unsigned calls;

	fresh(1);
	old.params = (uintptr_t)&p;
	CHECK_EQ(take_object(1, MIB), 0);
	calls = driver.calls;
	CHECK_EQ(take_object(2, 8 * GIB), STATUS_NO_MEMORY);
	CHECK_EQ(ask_heap(&h), STATUS_NO_MEMORY);
	CHECK_EQ(ioctl(FD, _IOC(_IOC_READ | _IOC_WRITE, RM_TYPE, RM_ALLOC, ALLOC_V21_SIZE), &old),
		 0);
	CHECK_EQ(old.v21.status, STATUS_NO_MEMORY);
	CHECK_EQ(driver.calls, calls);
	CHECK_EQ(refusals, 3);
	CHECK_EQ(vgpu_state.cache.header->budget[0].refused, 3);
	used(2 * MIB);
	CHECK_EQ(take_object(2, 8 * GIB - 2 * MIB), 0);
	used(8 * GIB);
	/* What the rounding takes beyond the limit is there: the next one pays. */
	CHECK_EQ(free_named(CLIENT, 1), 0);
	driver.rounded = 4 * MIB;
	CHECK_EQ(take_object(3, 2 * MIB), 0);
	used(8 * GIB + 2 * MIB);
	/* A process that has no place in its job. */
	vgpu_state.counted = false;
	CHECK_EQ(take_object(4, 1), STATUS_NO_MEMORY);
	fresh(0);
	CHECK_EQ(take_object(4, 1), STATUS_NO_MEMORY);
}

static void test_all_forms(void)
{
	struct rm_vid_heap h = heap_of(1, MIB), f = {.root = CLIENT, .function = VID_HEAP_FREE};
	struct rm_alloc_memory m = {.root = CLIENT,
				    .parent = DEVICE,
				    .object = 2,
				    .cls = CLASS_LOCAL_USER,
				    .limit = UINT32_MAX};
	struct rm_memory_params p = {.size = MIB, .flags = FLAG_VIRTUAL};
	struct rm_alloc a = {.root = CLIENT,
			     .parent = DEVICE,
			     .object = 3,
			     .cls = CLASS_LOCAL_USER};
	struct rm_xfer x = {RM_ALLOC, sizeof a, (uintptr_t)&a};
	unsigned long wrapped = _IOWR(RM_TYPE, RM_XFER, struct rm_xfer);

	fresh(1);
	CHECK_EQ(ask_heap(&h), 0);
	used(2 * MIB);
	/* Its size is elsewhere, which is where the first has its alignment. */
	h = heap_of(9, 1);
	f.memory = 9;
	h.function = VID_HEAP_ALLOC_SIZE_RANGE;
	h.range.size = 3 * MIB;
	CHECK_EQ(ask_heap(&h), 0);
	used(6 * MIB);
	CHECK_EQ(ask_heap(&f), 0);
	used(2 * MIB);
	h.range.size = 8 * GIB;
	CHECK_EQ(ask_heap(&h), STATUS_NO_MEMORY);
	/* By rows, whatever it says of its size. */
	h = heap_of(9, 80 * GIB);
	h.function = VID_HEAP_ALLOC_TILED;
	h.tiled.height = 1025;
	h.tiled.pitch = 4096;
	h.tiled.attr = 0;
	CHECK_EQ(ask_heap(&h), 0);
	used(8 * MIB);
	CHECK_EQ(ask_heap(&f), 0);
	h.tiled.height = 8u << 20;
	CHECK_EQ(ask_heap(&h), STATUS_NO_MEMORY);
	used(2 * MIB);
	/* System memory, addresses alone, and what asks for nothing. */
	h = heap_of(10, GIB);
	h.sized.attr = 1u << 25;
	CHECK_EQ(ask_heap(&h), 0);
	h = heap_of(10, GIB);
	h.sized.attr = 3u << 25;
	CHECK_EQ(ask_heap(&h), 0);
	h = heap_of(10, GIB);
	h.flags = FLAG_VIRTUAL;
	CHECK_EQ(ask_heap(&h), 0);
	h.function = VID_HEAP_INFO;
	CHECK_EQ(ask_heap(&h), 0);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 11, CLASS_LOCAL_USER, &p), 0);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 11, 0x3E, &p), 0);
	/* How large is the card? */
	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_ALLOC_MEMORY, struct rm_alloc_memory), &m), 0);
	CHECK_EQ(m.limit, 80 * GIB - 1);
	used(2 * MIB);
	/* In another call. */
	p = (struct rm_memory_params){.size = 2 * MIB};
	a.params = (uintptr_t)&p;
	CHECK_EQ(ioctl(FD, wrapped, &x), 0);
	used(4 * MIB);
	p.size = 8 * GIB;
	CHECK_EQ(ioctl(FD, wrapped, &x), 0);
	CHECK_EQ(a.v64.status, STATUS_NO_MEMORY);
	used(4 * MIB);
	/* What cannot be read is the kernel's to refuse. */
	p.size = 8 * GIB;
	a.params = 8;
	vgpu_transport = NULL;
	if (!emulated()) { /* QEMU may not look at the memory */
		CHECK_EQ(ioctl(FD, wrapped, &x), -1);
		x.arg = 8;
		CHECK_EQ(ioctl(FD, wrapped, &x), -1);
	}
	CHECK_EQ(ioctl(FD, wrapped, NULL), -1);
	CHECK_EQ(ioctl(FD, _IOWR(RM_TYPE, RM_ALLOC, struct rm_alloc), NULL), -1);
	CHECK_EQ(ioctl(FD, _IO('T', 1), NULL), -1);
	vgpu_transport = answer;
	used(4 * MIB);
}

static void test_freed_with_what_is_above(void)
{
	fresh(2);
	CHECK_EQ(take_below(CLIENT, DEVICE, 1, 2 * MIB), 0);
	CHECK_EQ(take_below(CLIENT, SUBDEVICE, 2, 2 * MIB), 0);
	CHECK_EQ(take_below(CLIENT, DEVICE + 10, 3, 2 * MIB), 0);
	devices_of(CLIENT + 1);
	CHECK_EQ(take_below(CLIENT + 1, DEVICE, 1, 2 * MIB), 0);
	used(6 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 2 * MIB);
	CHECK_EQ(free_named(CLIENT, DEVICE), 0);
	used(2 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 2 * MIB);
	CHECK_EQ(free_named(CLIENT, CLIENT), 0);
	CHECK_EQ(vgpu_mem_used(1), 0);
	used(2 * MIB);
	CHECK_EQ(free_named(CLIENT + 1, SUBDEVICE), 0);
	used(2 * MIB);
	CHECK_EQ(free_named(CLIENT + 1, CLIENT + 1), 0);
	used(0);
	CHECK_EQ(devices.count, 0);
}

/* Of two cards, by their UUIDs; what is on a card that is not known must fit on both. */
static void test_which_card(void)
{
	uint32_t number = 7;

	fresh(2);
	CHECK_EQ(take_below(CLIENT, DEVICE, 1, 2 * MIB), 0);
	CHECK_EQ(take_below(CLIENT, DEVICE + 10, 2, 4 * MIB), 0);
	used(2 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 4 * MIB);
	CHECK_EQ(alloc_below(CLIENT, CLIENT, 50, CLASS_DEVICE, &number), 0);
	CHECK_EQ(take_below(CLIENT, 50, 3, 2 * MIB), 0);
	used(4 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 6 * MIB);
	/* The second card's limit is the smaller one. */
	CHECK_EQ(take_below(CLIENT, 50, 4, 5 * GIB), STATUS_NO_MEMORY);
	used(4 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 6 * MIB);
	CHECK_EQ(take_below(CLIENT, DEVICE, 4, 5 * GIB), 0);
	CHECK_EQ(free_named(CLIENT, 3), 0);
	CHECK_EQ(vgpu_mem_used(1), 4 * MIB);
	CHECK_EQ(vgpu_mem_used(0), 5 * GIB + 2 * MIB);
}

/* Where an API's submissions have a gate, a hard limit acts as one. */
static void test_nobody_is_told_of_a_limit_that_holds(void)
{
	fresh(1);
	any_api = true;
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 1, CLASS_CHANNEL_GROUP, NULL), 0);
	any_api = false;
	CHECK(vgpu_state.other_cards == 1 && begun[0] == 1 && ungated == 0);
}

static void test_work_begins(void)
{
	fresh(2);
	CHECK_EQ(alloc_below(CLIENT, DEVICE + 10, 1, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(begun[0], 0);
	CHECK_EQ(begun[1], 1);
	CHECK_EQ(ungated, 1);
	CHECK_EQ(vgpu_state.other_cards, 2);
	CHECK_EQ(vgpu_state.slot->flags, VGPU_SLOT_UNGATED);
	CHECK(vgpu_rm_grown());
	CHECK_EQ(groups[0].card, 1);
	CHECK_EQ(alloc_below(CLIENT, DEVICE + 10, 2, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(begun[1], 1);
	/* On a card that is not known: on any. */
	CHECK_EQ(alloc_below(CLIENT, 50, 3, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(begun[0], 1);
	driver.status = STATUS_NO_MEMORY;
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 4, CLASS_CHANNEL_GROUP, NULL), STATUS_NO_MEMORY);
	CHECK_EQ(ngroups, 3);
}

/* Without a group: the kernel driver makes one, which nobody sees. */
static void test_work_begins_in_a_channel_alone(void)
{
	fresh(2);
	attached = 0;
	CHECK_EQ(alloc_below(CLIENT, DEVICE + 10, 1, HOPPER_CHANNEL, NULL), 0);
	CHECK_EQ(attached, 1);
	CHECK_EQ(begun[0], 0);
	CHECK_EQ(begun[1], 1);
	CHECK_EQ(vgpu_rm_set_slices(1, 700, false), -ENOENT);
	/* Of a group, or libcuda's. */
	CHECK_EQ(alloc_below(CLIENT, 60, 3, HOPPER_CHANNEL, NULL), 0);
	by_libcuda = true;
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 4, HOPPER_CHANNEL, NULL), 0);
	CHECK_EQ(begun[0], 0);
	CHECK_EQ(ungated, 1);
}

/* Neither does an instance of MIG have a number of its own, nor does its UUID lead to one: what is
 * asked of it counts on the job's only one, or on all. */
static void test_mig(void)
{
	char uuid[2][VGPU_UUID_LEN];

	for (int i = 0; i < 2; i++) {
		memcpy(uuid[i], grant.card[i].uuid, VGPU_UUID_LEN);
		memcpy(grant.card[i].uuid, "MIG-cd", 6);
	}
	fresh(1);
	CHECK_EQ(take_object(1, 2 * MIB), 0);
	used(2 * MIB);
	fresh(2);
	CHECK_EQ(take_object(1, 2 * MIB), 0);
	used(2 * MIB);
	CHECK_EQ(vgpu_mem_used(1), 2 * MIB);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 2, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(begun[0] + begun[1], 2);
	for (int i = 0; i < 2; i++)
		memcpy(grant.card[i].uuid, uuid[i], VGPU_UUID_LEN);
}

static void test_told(void)
{
	static const uint32_t index[] = {FB_RAM_SIZE,  FB_TOTAL_RAM_SIZE,  FB_HEAP_SIZE,
					 FB_HEAP_FREE, FB_USABLE_RAM_SIZE, FB_LARGEST_FREE,
					 0x5};
	struct rm_fb_info_v2 v2 = {.n = 7};
	struct rm_fb_entry list[7];
	struct rm_fb_info old = {.n = 7, .list = (uintptr_t)list};
	struct rm_vid_heap h = heap_of(0, 0);

	fresh(2);
	CHECK_EQ(take_object(1, GIB), 0);
	for (int i = 0; i < 7; i++)
		v2.entry[i].index = list[i].index = index[i];
	control_of(SUBDEVICE, CMD_FB_INFO_V2, &v2);
	control_of(SUBDEVICE, CMD_FB_INFO, &old);
	for (int i = 0; i < 7; i++) {
		uint32_t want = index[i] == 0x5 ? 80u << 20
				: index[i] == FB_HEAP_FREE || index[i] == FB_LARGEST_FREE
					? 7u << 20
					: 8u << 20;

		CHECK_EQ(v2.entry[i].kib, want);
		CHECK_EQ(list[i].kib, want);
	}
	h.function = VID_HEAP_INFO;
	CHECK_EQ(ask_heap(&h), 0);
	CHECK_EQ(h.total, 8 * GIB);
	CHECK_EQ(h.free, 7 * GIB);
	CHECK_EQ(h.info.size, 7 * GIB);
	/* libcuda's own answers are told by its hooks. */
	by_libcuda = true;
	control_of(SUBDEVICE, CMD_FB_INFO_V2, &v2);
	CHECK_EQ(v2.entry[0].kib, 80u << 20);
	/* A list that is longer than there may be, or that cannot be read. */
	by_libcuda = false;
	old.n = FB_INFO_MAX + 1;
	CHECK_EQ(vgpu_object_told(CLIENT, SUBDEVICE, FB_RAM_SIZE, 5), 5);
	CHECK_EQ(vgpu_object_told(CLIENT, DEVICE + 10, FB_RAM_SIZE, 80u << 20), 4u << 20);
}

static void test_table_full(void)
{
	fresh(1);
	driver.rounded = 1;
	for (uint32_t i = 1; i <= VGPU_MAX_MEMORY_OBJECTS; i++)
		CHECK_EQ(take_object(i, 1), 0);
	CHECK_EQ(take_object(VGPU_MAX_MEMORY_OBJECTS + 1, 1), STATUS_NO_MEMORY);
	used(VGPU_MAX_MEMORY_OBJECTS);
	CHECK_EQ(free_named(CLIENT, 1), 0);
	CHECK_EQ(take_object(VGPU_MAX_MEMORY_OBJECTS + 1, 1), 0);
	CHECK_EQ(free_named(CLIENT, DEVICE), 0);
	used(0);
}

/* What the parent holds, the parent pays. */
static void test_fork(void)
{
	int status;
	pid_t pid;

	fresh(1);
	CHECK_EQ(take_object(1, 2 * MIB), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		private_in_child();
		vgpu_state.other_cards = 0;
		vgpu_state.slot = claim(&vgpu_state.cache);
		CHECK_EQ(vgpu_mem_used(0), 2 * MIB);
		free_named(CLIENT, 1);
		CHECK_EQ(vgpu_mem_used(0), 2 * MIB);
		CHECK_EQ(take_object(2, 2 * MIB), 0);
		CHECK_EQ(vgpu_mem_used(0), 4 * MIB);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(free_named(CLIENT, 1), 0);
	CHECK_EQ(vgpu_state.slot->card[0].mem, 0);
}

#define ROUNDS 2000

static void *take_and_free(void *arg)
{
	uint32_t base = (uint32_t)(uintptr_t)arg;
	unsigned refused = 0;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t object = base + i % 8;

		if (take_object(object, 3 * GIB) == 0)
			free_named(CLIENT, object);
		else
			refused++;
		if (__atomic_load_n(&vgpu_state.slot->card[0].mem, __ATOMIC_SEQ_CST) >
		    12 * GIB) /* two that hold, two announced */
			abort();
	}
	return (void *)(uintptr_t)refused;
}

/* Memory is charged in a child whose filter has this answer to two calls. */
static void charged_with(uint32_t call, uint32_t other, uint32_t answers)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, answers),
	};
	struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
	int status;
	pid_t child;

	fresh(1);
	child = fork();
	if (child == 0) {
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
		      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
		CHECK_EQ(take_below(CLIENT, DEVICE, 1, 2 * MIB), 0);
		CHECK_EQ(take_below(CLIENT, DEVICE, 2, 8 * GIB), STATUS_NO_MEMORY);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
}

/* A browser's sandbox ends a process that makes other calls than it expects. A container forbids some. */
static void test_in_a_sandbox(void)
{
	charged_with(__NR_process_vm_readv, __NR_process_vm_writev, SECCOMP_RET_KILL);
	charged_with(__NR_rt_sigprocmask, __NR_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
}

/* The last bytes of a page are readable. A range that ends in a missing page is not. */
static void test_what_is_readable(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t end = (uintptr_t)p + page;
	char to[8] = {0};

	CHECK(p != MAP_FAILED && munmap(p + page, page) == 0);
	p[page - 3] = 'x';
	CHECK(vgpu_peek(end - 3, to, 3) && to[0] == 'x');
	CHECK(!vgpu_peek(end - 3, to, 4) && !vgpu_peek(end, to, 1) && !vgpu_peek(0, to, 1));
	CHECK(vgpu_poke(end - 1, "y", 1) && p[page - 1] == 'y' && !vgpu_poke(end - 1, "yy", 2));
	munmap(p, page);
}

static void test_two_threads(void)
{
	pthread_t thread[4];
	void *refused;
	unsigned sum = 0;

	fresh(1);
	for (uintptr_t i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&thread[i], NULL, take_and_free, (void *)(i * 100 + 100)),
			 0);
	for (unsigned i = 0; i < 4; i++) {
		CHECK_EQ(pthread_join(thread[i], &refused), 0);
		sum += (unsigned)(uintptr_t)refused;
	}
	used(0);
	CHECK_EQ(vgpu_state.cache.header->budget[0].refused, sum);
}

int main(void)
{
	set_up();
	test_charge_and_free();
	test_refused();
	test_all_forms();
	test_freed_with_what_is_above();
	test_which_card();
	test_work_begins();
	test_work_begins_in_a_channel_alone();
	test_mig();
	test_nobody_is_told_of_a_limit_that_holds();
	test_told();
	test_table_full();
	test_fork();
	test_two_threads();
	if (!emulated()) { /* QEMU has no filters, and may not look at the memory */
		test_in_a_sandbox();
		test_what_is_readable();
	}
	return done("door_test");
}
