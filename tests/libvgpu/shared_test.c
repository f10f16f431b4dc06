/* SPDX-License-Identifier: Apache-2.0 */
/* shared_test.c - memory that descriptors and imports keep alive: its charge ends with the last of
 * these references. */
#define _GNU_SOURCE
#include "../../libvgpu/memory/shared.c"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../stress/programs/fds.h"
#include "check.h"
#include "child.h"

#define MIB (1ull << 20)

static uint64_t given_back, charged;
/* All exports are open files of this device. /dev/null cannot be polled. */
static const char *device = "/dev/null";

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
	int fd = open(device, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0);
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
	CHECK_EQ(vgpu_shared_uncounted(1), 0);
	let_go(2, 0);
	settled(0);
	CHECK_EQ(vgpu_shared_uncounted(1), MIB);
	CHECK_EQ(vgpu_shared_uncounted(0), 0);
	close(a);
	settled(MIB);
	CHECK_EQ(vgpu_shared_uncounted(1), 0);
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
	other = open(device, O_RDWR | O_CLOEXEC);
	CHECK_EQ(other, fd);
	let_go(10, MIB);
	/* Released before it is closed. */
	close(other);
	fd = export(11);
	let_go(11, 0);
	close(fd);
	CHECK_EQ(open(device, O_RDWR | O_CLOEXEC), fd);
	settled(MIB);
	close(fd);
}

/* The number of the epoll set, which is the only one of this process; -1: there is none. */
static int epoll_set(void)
{
	char path[64], name[64];
	ssize_t n;

	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		n = readlink(path, name, sizeof name - 1);
		name[n > 0 ? n : 0] = 0;
		if (strcmp(name, "anon_inode:[eventpoll]") == 0)
			return fd;
	}
	return -1;
}

static int entries_of(int set)
{
	int n = epoll_entries(set);

	CHECK(n >= 0);
	return n;
}

/* The descriptor is sent, and closed here. */
static void send_away(int socket, int fd)
{
	CHECK_EQ(send_fd(socket, fd), 0);
	close(fd);
}

/* A child that has all descriptors until the other end of the pipe is closed. */
static pid_t child_that_waits(int end[2])
{
	char byte;
	pid_t child;

	CHECK_EQ(pipe2(end, O_CLOEXEC), 0);
	child = fork();
	if (child == 0) {
		close(end[1]);
		(void)!read(end[0], &byte, 1);
		_exit(0);
	}
	return child;
}

static void test_a_descriptor_elsewhere_keeps_the_memory(void)
{
	int pair[2], end[2], fd, other, set;
	pid_t child;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	fd = export(50);
	send_away(pair[0], fd);
	let_go(50, 0);
	settled(0);
	/* Another export has its number. */
	other = export(51);
	CHECK_EQ(other, fd);
	settled(0);
	set = epoll_set();
	CHECK(set >= 512);
	CHECK(fcntl(set, F_GETFD) & FD_CLOEXEC);
	CHECK_EQ(entries_of(set), 2);
	close(other);
	let_go(51, MIB);
	settled(0);
	close(pair[0]);
	close(pair[1]);
	settled(MIB);
	CHECK_EQ(entries_of(set), 0);
	/* A duplicate, and a copy of a child. */
	fd = export(52);
	other = dup(fd);
	close(fd);
	let_go(52, 0);
	child = child_that_waits(end);
	close(other);
	settled(0);
	close(end[0]);
	close(end[1]);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	settled(MIB);
	/* One descriptor for two allocations: one open file has one entry. */
	fd = export(53);
	CHECK(vgpu_shared_note(54, fd));
	CHECK_EQ(entries_of(set), 1);
	other = dup(fd);
	close(fd);
	let_go(53, 0);
	let_go(54, 0);
	settled(0);
	close(other);
	settled(2 * MIB);
}

/* Exports that only a closed set listed count as open. A new set lists later exports. */
static void test_the_program_closes_the_set(void)
{
	int fd = export(60), copy = dup(fd), later, set = epoll_set(), own;

	close(fd);
	let_go(60, 0);
	close(set);
	settled(0);
	own = epoll_create1(EPOLL_CLOEXEC);
	CHECK_EQ(dup2(own, set), set);
	close(own);
	settled(0);
	given_back = 0;
	later = export(61);
	CHECK_EQ(given_back, 0);
	CHECK_EQ(entries_of(set), 0); /* the program's own */
	own = dup(later);
	close(later);
	let_go(61, 0);
	settled(0);
	close(own);
	settled(MIB);
	close(copy);
	settled(0);
	close(set);
	/* One that has its number still needs no set. */
	fd = export(62);
	let_go(62, 0);
	close(epoll_set());
	settled(0);
	close(fd);
	settled(0);
}

/* A file that cannot be polled: its number and its mark decide. */
static void test_a_file_without_poll(void)
{
	int fd = open(device, O_RDWR | O_CLOEXEC), copy = dup(fd);

	CHECK(vgpu_shared_note(70, fd));
	let_go(70, 0);
	settled(0);
	close(fd);
	settled(MIB);
	close(copy);
}

static void test_a_child_has_no_exports(void)
{
	int fd = export(80), parents = entries_of(epoll_set()), status;
	pid_t child = fork();

	if (child == 0) {
		private_in_child();
		vgpu_shared_in_child();
		fd = export(81);
		if (entries_of(epoll_set()) != parents)
			_exit(1);
		close(fd);
		let_go(81, MIB);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	close(fd);
	let_go(80, MIB);
}

static void test_an_import_is_a_reference(void)
{
	struct vgpu_kept *one, *two;
	int fd = export(20), copy = dup(fd), stranger = open(device, O_RDWR);

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
	fd = open(device, O_RDWR | O_CLOEXEC);
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
	static VGPU_TABLE(table);
	struct vgpu_range range = {.begin = 0x1800, .end = 0x3001};
	struct vgpu_item item = {.size = 0x1000};

	for (uint64_t i = 0; i < 5; i++) {
		item.key = i << 12;
		CHECK(vgpu_table_put(&table, &item));
	}
	range.fd = open(device, O_RDWR | O_CLOEXEC);
	vgpu_table_sweep(&table, (uintptr_t)&range, vgpu_shared_range);
	CHECK(!range.failed);
	CHECK_EQ(table.count, 5);
	for (uint64_t i = 0; i < 5; i++)
		let_go(i << 12, i == 0 || i == 4 ? MIB : 0);
	close(range.fd);
	settled(3 * MIB);
	/* One entry has all of it. */
	range = (struct vgpu_range){.begin = 0x2100, .end = 0x2fff, .base = 0x2000};
	range.fd = open(device, O_RDWR | O_CLOEXEC);
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
	for (uint64_t i = 0; i < 5; i++)
		CHECK(vgpu_table_take(&table, i << 12, &item));
}

static void test_both_devices(void)
{
	test_the_exporter_pays_until_the_descriptor_is_closed();
	test_a_reused_number_keeps_nothing();
	test_an_import_is_a_reference();
	test_any_number_of_exports();
	test_a_range_keeps_what_is_in_it();
}

int main(void)
{
	char folder[] = "/tmp/shared_test.XXXXXX", fifo[64];

	CHECK(mkdtemp(folder) != NULL);
	snprintf(fifo, sizeof fifo, "%s/fifo", folder);
	CHECK_EQ(mkfifo(fifo, 0600), 0);
	test_both_devices();
	test_a_file_without_poll();
	test_a_handle_of_bytes();
	device = fifo;
	test_both_devices();
	if (!emulated()) {
		test_a_descriptor_elsewhere_keeps_the_memory();
		test_a_child_has_no_exports();
		test_the_program_closes_the_set();
	}
	unlink(fifo);
	rmdir(folder);
	return done("shared");
}
