/* SPDX-License-Identifier: Apache-2.0 */
/* door_caller_test.c - who asks the kernel driver, and what is kept of it by descriptors and from
 * memory that cannot be looked at. */
#include "door.h"

static void test_libcuda_is_left_alone(void)
{
	struct rm_vid_heap h = heap_of(4, GIB);

	fresh(1);
	by_libcuda = true;
	attached = 0;
	CHECK_EQ(take_object(1, 20 * GIB), 0);
	CHECK_EQ(ask_heap(&h), 0);
	devices_of(CLIENT + 1);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 3, CLASS_CHANNEL_GROUP, NULL), 0);
	used(0);
	CHECK_EQ(attached + watchers + refusals + begun[0] + ungated, 0);
	CHECK_EQ(vgpu_state.slot->flags, 0);
	CHECK_EQ(ngroups, 1); /* its slices are set, by who makes its context */
	CHECK_EQ(free_named(CLIENT, DEVICE), 0);
	CHECK_EQ(ngroups, 0);
}

/* Called by another ioctl that stands before this one: the hooks tell. */
static void test_libcuda_behind_another(void)
{
	fresh(1);
	vgpu_mem_begin();
	CHECK_EQ(take_object(1, 20 * GIB), 0);
	vgpu_mem_end();
	vgpu_rm_creating(0);
	CHECK_EQ(take_object(2, 20 * GIB), 0);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 3, CLASS_CHANNEL_GROUP, NULL), 0);
	vgpu_rm_creating(-1);
	/* Of a stream that is made later. */
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 6, CLASS_CHANNEL_GROUP, NULL), 0);
	used(0);
	CHECK_EQ(watchers + refusals + begun[0] + ungated, 0);
	CHECK_EQ(ngroups, 2);
	CHECK_EQ(alloc_below(CLIENT + 1, DEVICE, 6, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(begun[0] + ungated, 2);
	/* What no hook waits for counts, also when a hook waits for its end. */
	CHECK_EQ(take_object(4, 2 * MIB), 0);
	used(2 * MIB);
	vgpu_mem_begin();
	CHECK_EQ(free_named(CLIENT, 4), 0);
	vgpu_mem_end();
	used(0);
	CHECK_EQ(take_object(5, 20 * GIB), STATUS_NO_MEMORY);
}

/* Released while its descriptor is open, it still counts. */
static void test_exported(void)
{
	int fd = open("/dev/null", O_RDONLY);
	struct rm_export e = {EXPORT_OBJECT, DEVICE, DEVICE, 1, fd, 0};

	fresh(1);
	CHECK_EQ(take_object(1, 2 * MIB), 0);
	CHECK_EQ(control_of(CLIENT, CMD_EXPORT_TO_FD, &e), 0);
	CHECK_EQ(free_named(CLIENT, 1), 0);
	used(2 * MIB);
	close(fd);
	CHECK_EQ(take_object(2, 4 * MIB), 0);
	used(4 * MIB);
}

/* Several in one descriptor, in one call or in turn: each counts until that is closed. */
static void test_several_exported(void)
{
	int fd = open("/dev/null", O_RDONLY);
	struct rm_export_all all = {.fd = fd, .object = {1, 0, 2}, .n = 3};

	fresh(1);
	for (uint32_t i = 1; i <= 4; i++)
		CHECK_EQ(take_object(i, 2 * MIB), 0);
	CHECK_EQ(control_of(CLIENT, CMD_EXPORT_ALL_TO_FD, &all), 0);
	all.object[0] = 3;
	all.n = 1;
	CHECK_EQ(control_of(CLIENT, CMD_EXPORT_ALL_TO_FD, &all), 0);
	for (uint32_t i = 1; i <= 4; i++)
		CHECK_EQ(free_named(CLIENT, i), 0);
	used(6 * MIB);
	close(fd);
	vgpu_shared_settle();
	used(0);
}

/* In both forms of the call; one that failed keeps nothing. */
static void test_dmabuf(void)
{
	static const size_t size[] = {DMABUF_OLD_SIZE, DMABUF_SIZE};
	struct {
		struct rm_dmabuf head;
		uint32_t rest[(DMABUF_SIZE - sizeof(struct rm_dmabuf)) / 4];
	} d;

	for (unsigned i = 0; i < 2; i++) {
		unsigned long req = _IOC(_IOC_READ | _IOC_WRITE, RM_TYPE, RM_DMABUF, size[i]);

		memset(&d, 0, sizeof d);
		d.head = (struct rm_dmabuf){.client = CLIENT, .n = 2};
		d.head.fd = open("/dev/null", O_RDONLY);
		d.rest[i] = 1;
		d.rest[i + 1] = 2;
		fresh(1);
		for (uint32_t k = 1; k <= 3; k++)
			CHECK_EQ(take_object(k, 2 * MIB), 0);
		CHECK_EQ(ioctl(FD, req, &d), 0);
		driver.status = STATUS_NO_MEMORY;
		d.rest[i] = 3;
		CHECK_EQ(ioctl(FD, req, &d), 0);
		driver.status = 0;
		for (uint32_t k = 1; k <= 3; k++)
			CHECK_EQ(free_named(CLIENT, k), 0);
		used(4 * MIB);
		close(d.head.fd);
		vgpu_shared_settle();
		used(0);
	}
}

/* Any number of exports is followed. */
static void test_many_exported(void)
{
	struct rm_export_all all = {.fd = open("/dev/null", O_RDONLY), .n = 1};
	enum { MANY = 5000 };

	fresh(1);
	driver.rounded = MIB;
	for (uint32_t i = 0; i < MANY; i++) {
		all.object[0] = i + 1;
		CHECK_EQ(take_object(i + 1, MIB), 0);
		CHECK_EQ(control_of(CLIENT, CMD_EXPORT_ALL_TO_FD, &all), 0);
	}
	CHECK_EQ(free_named(CLIENT, MANY), 0);
	CHECK_EQ(free_named(CLIENT, 1), 0);
	used(MANY * MIB);
	close(all.fd);
	for (uint32_t i = 0; i < MANY; i++)
		free_named(CLIENT, i + 1);
	vgpu_shared_settle();
	used(0);
}

/* It is asked once, and nothing is looked at from then on. */
static void test_no_job(void)
{
	fresh(1);
	attached = 0;
	vgpu_state.grant = NULL;
	CHECK_EQ(take_object(1, 20 * GIB), 0);
	CHECK_EQ(take_object(2, 20 * GIB), 0);
	CHECK_EQ(alloc_below(CLIENT, DEVICE, 3, CLASS_CHANNEL_GROUP, NULL), 0);
	CHECK_EQ(attached, 1);
	CHECK_EQ(ngroups, 0);
	vgpu_state.grant = &grant;
	used(0);
	CHECK_EQ(take_object(1, 20 * GIB), STATUS_NO_MEMORY);
}

/* A program that has none, on an old glibc, asks other devices. */
static void test_no_libdl(void)
{
	vgpu_real_ioctl = NULL;
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ioctl(-1, _IO('T', 1), NULL), -1);
	CHECK_EQ(walks, 1);
	vgpu_real_ioctl = others_ioctl;
}

int main(void)
{
	set_up();
	test_libcuda_is_left_alone();
	test_libcuda_behind_another();
	test_exported();
	test_several_exported();
	test_dmabuf();
	test_many_exported();
	test_no_job();
	test_no_libdl();
	return done("door_caller_test");
}
