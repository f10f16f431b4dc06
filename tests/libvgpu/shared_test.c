/* SPDX-License-Identifier: Apache-2.0 */
/* shared_test.c - memory that descriptors and imports keep alive: its charge ends with the last of
 * these references. */
#define _GNU_SOURCE
#include "../../libvgpu/memory/shared.c"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

#define MIB (1ull << 20)
#define FILE_OF_ALL "/dev/null"

static uint64_t given_back, charged;

void vgpu_release(int card, uint64_t bytes)
{
	CHECK_EQ(card, 1);
	given_back += bytes;
}

void vgpu_charge_forced(int card, uint64_t bytes)
{
	CHECK_EQ(card, 1);
	charged += bytes;
}

/* As the driver does: each export is a new open file of one device. */
static int export(uint64_t key)
{
	int fd = open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC);

	CHECK(fd >= 0);
	vgpu_shared_reused(fd);
	CHECK(vgpu_shared_note(key, fd));
	return fd;
}

static void let_go(uint64_t key, uint64_t want)
{
	given_back = charged = 0;
	vgpu_shared_release(key, 1, MIB);
	CHECK_EQ(given_back - charged, want);
}

static void settled(uint64_t want)
{
	given_back = 0;
	vgpu_shared_settle();
	CHECK_EQ(given_back, want);
}

static void test_the_exporter_pays_until_the_descriptor_is_closed(void)
{
	int a, b;

	let_go(1, MIB); /* never exported */
	a = export(2);
	let_go(2, 0);
	settled(0);
	close(a);
	settled(MIB);
	settled(0);
	/* Twice exported, it is one piece. */
	a = export(3);
	b = export(3);
	let_go(3, 0);
	close(a);
	settled(0);
	close(b);
	settled(MIB);
	/* Closed before its release. */
	a = export(4);
	close(a);
	let_go(4, MIB);
	/* The number of a closed one is given out again. */
	a = export(5);
	let_go(5, 0);
	close(a);
	given_back = 0;
	b = export(6);
	CHECK_EQ(b, a);
	CHECK_EQ(given_back, MIB);
	close(b);
	let_go(6, MIB);
}

/* The same device and inode, but another open file. */
static void test_a_reused_number_keeps_nothing(void)
{
	int fd = export(10), other;

	close(fd);
	other = open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC);
	CHECK_EQ(other, fd);
	let_go(10, MIB);
	/* Released before it is closed. */
	close(other);
	fd = export(11);
	let_go(11, 0);
	close(fd);
	CHECK_EQ(open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC), fd);
	settled(MIB);
	close(fd);
}

static void test_an_import_is_a_reference(void)
{
	struct vgpu_kept *one, *two;
	int fd = export(20), copy = dup(fd), stranger = open(FILE_OF_ALL, O_RDONLY);

	CHECK(vgpu_shared_import(stranger) == NULL);
	CHECK(vgpu_shared_import(-1) == NULL);
	one = vgpu_shared_import(fd);
	two = vgpu_shared_import(copy); /* the same open file by another number */
	CHECK(one && one == two);
	close(fd);
	close(copy);
	close(stranger);
	let_go(20, 0);
	settled(0);
	vgpu_shared_unimport(one);
	settled(0);
	given_back = 0;
	vgpu_shared_unimport(two);
	CHECK_EQ(given_back, MIB);
	/* The import goes first. */
	fd = export(21);
	one = vgpu_shared_import(fd);
	close(fd);
	vgpu_shared_unimport(one);
	let_go(21, MIB);
	/* An import is made of memory that is released already, and exported again. */
	fd = export(22);
	let_go(22, 0);
	one = vgpu_shared_import(fd);
	close(fd);
	settled(0);
	fd = open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC);
	CHECK(vgpu_shared_note_kept(one, fd));
	vgpu_shared_unimport(one);
	settled(0);
	close(fd);
	settled(MIB);
}

/* A handle that is no descriptor does not keep the memory. */
static void test_a_handle_of_bytes(void)
{
	unsigned char data[VGPU_EXPORT_DATA] = {1}, other[VGPU_EXPORT_DATA] = {2};
	struct vgpu_kept *k;

	CHECK(vgpu_shared_note_data(30, data));
	CHECK(vgpu_shared_note_data(30, data));
	CHECK(vgpu_shared_import_data(other) == NULL);
	let_go(30, MIB);
	CHECK(vgpu_shared_import_data(data) == NULL);
	CHECK(vgpu_shared_note_data(30, data));
	k = vgpu_shared_import_data(data);
	CHECK(k != NULL);
	let_go(30, 0);
	given_back = 0;
	vgpu_shared_unimport(k);
	CHECK_EQ(given_back, MIB);
}

/* More than 4,096 are open, of one allocation and of one each. */
static void test_any_number_of_exports(void)
{
	struct rlimit files = {8192, 8192};
	enum { MANY = 5000 };
	static int fd[MANY];

	if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
		printf("shared: no more descriptors allowed, so many exports are not tried\n");
		return;
	}
	for (int i = 0; i < MANY; i++)
		fd[i] = export(40);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	let_go(40, MIB);
	for (int i = 0; i < MANY; i++)
		fd[i] = export(100 + (uint64_t)i);
	for (int i = 0; i < MANY; i++)
		let_go(100 + (uint64_t)i, 0);
	settled(0);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	settled(MANY * MIB);
}

/* The descriptor keeps each entry with a part of the addresses. All entries stay in their table. */
static void test_a_range_keeps_what_is_in_it(void)
{
	static struct vgpu_table table = VGPU_TABLE_INIT;
	struct vgpu_range range = {.begin = 0x1800, .end = 0x3001};
	struct vgpu_item item = {.size = 0x1000};

	for (uint64_t i = 0; i < 5; i++) {
		item.key = i << 12;
		CHECK(vgpu_table_put(&table, &item));
	}
	range.fd = open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC);
	vgpu_table_sweep(&table, (uintptr_t)&range, vgpu_shared_range);
	CHECK(!range.failed);
	CHECK_EQ(table.count, 5);
	for (uint64_t i = 0; i < 5; i++)
		let_go(i << 12, i == 0 || i == 4 ? MIB : 0);
	close(range.fd);
	settled(3 * MIB);
	/* One entry has all of it. */
	range = (struct vgpu_range){.begin = 0x2100, .end = 0x2fff, .base = 0x2000};
	range.fd = open(FILE_OF_ALL, O_RDONLY | O_CLOEXEC);
	CHECK(vgpu_shared_one(&table, &range));
	let_go(0x2000, 0);
	close(range.fd);
	settled(MIB);
	range.end = 0x3001;
	CHECK(!vgpu_shared_one(&table, &range));
	range.base = 0x2100;
	CHECK(!vgpu_shared_one(&table, &range));
	/* One that is closed by now keeps nothing. */
	vgpu_table_sweep(&table, (uintptr_t)&range, vgpu_shared_range);
	CHECK(!range.failed);
	CHECK_EQ(table.count, 5);
	let_go(0x1000, MIB);
}

int main(void)
{
	test_the_exporter_pays_until_the_descriptor_is_closed();
	test_a_reused_number_keeps_nothing();
	test_an_import_is_a_reference();
	test_a_handle_of_bytes();
	test_any_number_of_exports();
	test_a_range_keeps_what_is_in_it();
	return done("shared");
}
