/* SPDX-License-Identifier: Apache-2.0 */
/* table_test.c - the process-local table of addresses and handles. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../libvgpu/base/table.h"
#include "check.h"
#include "child.h"

#define KEYS 20000u

static VGPU_TABLE(table);

static void test_put_get_take(void)
{
	struct vgpu_item item = {.key = 4096, .size = 10, .card = 1, .refs = 1}, out = {0};

	CHECK(!vgpu_table_get(&table, 4096, &out));
	CHECK(vgpu_table_put(&table, &item));
	CHECK(vgpu_table_get(&table, 4096, &out));
	CHECK_EQ(out.size, 10);
	CHECK(vgpu_table_take(&table, 4096, &out));
	CHECK_EQ(out.card, 1);
	CHECK(!vgpu_table_take(&table, 4096, &out));
}

static void test_references(void)
{
	struct vgpu_item item = {.key = 7, .size = 99, .refs = 1}, out = {0};

	CHECK(vgpu_table_put(&table, &item));
	CHECK(vgpu_table_ref(&table, 7, 1, &out));
	CHECK_EQ(out.refs, 2);
	CHECK(vgpu_table_ref(&table, 7, -1, &out));
	CHECK_EQ(out.refs, 1);
	CHECK(vgpu_table_ref(&table, 7, -1, &out));
	CHECK_EQ(out.refs, 0);
	CHECK_EQ(out.size, 99);
	CHECK(!vgpu_table_ref(&table, 7, 1, &out));
	/* An entry that counts none stays as it is. */
	item.refs = 0;
	CHECK(vgpu_table_put(&table, &item));
	CHECK(!vgpu_table_ref(&table, 7, -1, &out));
	CHECK(vgpu_table_take(&table, 7, &out));
	CHECK_EQ(out.refs, 0);
}

static uint64_t dropped;

static void drop(const struct vgpu_item *item)
{
	dropped += item->size;
}

static bool large(const struct vgpu_item *item, uint64_t from)
{
	return item->size >= from;
}

/* For a free: entries that have left are found by no other thread, and come back as they were. */
static void test_entries_leave_and_come_back(void)
{
	struct vgpu_item item = {.key = 11, .size = 1}, out;
	struct vgpu_item *list;

	CHECK(vgpu_table_detach(&table, 11) == NULL);
	for (item.size = 1; item.size <= 4; item.size++)
		CHECK(vgpu_table_put(&table, &item));
	list = vgpu_table_detach(&table, 11);
	CHECK(list && !vgpu_table_get(&table, 11, &out));
	CHECK_EQ(table.count, 0);
	vgpu_table_attach(&table, list);
	CHECK_EQ(table.count, 4);
	list = vgpu_table_detach_if(&table, 3, large);
	CHECK_EQ(table.count, 2);
	vgpu_table_drop(&table, list, drop);
	CHECK_EQ(dropped, 3 + 4);
	vgpu_table_drop(&table, vgpu_table_detach(&table, 11), drop);
	CHECK_EQ(dropped, 1 + 2 + 3 + 4);
	vgpu_table_drop(&table, NULL, drop);
	item.size = 5;
	CHECK(vgpu_table_put(&table, &item));
	CHECK_EQ(vgpu_table_raise(&table, 11, 7), 2);
	CHECK_EQ(vgpu_table_raise(&table, 11, 6), 0);
	CHECK_EQ(vgpu_table_raise(&table, 12, 6), 0);
	CHECK(vgpu_table_take(&table, 11, &out));
	CHECK_EQ(out.size, 7);
}

static void *churn(void *arg)
{
	uint64_t base = (uint64_t)(uintptr_t)arg << 40, wrong = 0;

	for (uint64_t i = 0; i < KEYS; i++) {
		struct vgpu_item item = {.key = base + i * 2097152, .size = i};

		wrong += !vgpu_table_put(&table, &item);
	}
	for (uint64_t i = 0; i < KEYS; i++) {
		struct vgpu_item out;

		wrong += !vgpu_table_take(&table, base + i * 2097152, &out) || out.size != i;
	}
	return (void *)(uintptr_t)wrong;
}

static void test_threads_and_growth(void)
{
	pthread_t t[4];

	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, churn, (void *)(i + 1)) == 0);
	for (int i = 0; i < 4; i++) {
		void *wrong;

		CHECK(pthread_join(t[i], &wrong) == 0);
		CHECK_EQ((uintptr_t)wrong, 0);
	}
	CHECK_EQ(table.count, 0);
}

/* A thread of the parent is at a table, which may be torn, and stays there. */
static void test_a_forked_child_begins_anew(void)
{
	struct vgpu_item item = {.key = 4096, .size = 10}, out;
	pid_t child;
	int status;

	CHECK(vgpu_table_put(&table, &item));
	pthread_mutex_lock(&table.lock);
	child = fork();
	if (child == 0) {
		alarm(5);
		private_in_child();
		_exit(!vgpu_table_get(&table, 4096, &out) && vgpu_table_put(&table, &item) &&
				      vgpu_table_take(&table, 4096, &out)
			      ? 0
			      : 1);
	}
	pthread_mutex_unlock(&table.lock);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
	CHECK(vgpu_table_take(&table, 4096, &out));
}

static uint64_t swept;

static bool of_owner(const struct vgpu_item *item, uint64_t owner)
{
	if (item->owner != owner)
		return false;
	swept += item->size;
	return true;
}

/* Entries of one owner go, also several of one key, and no others. */
static void test_sweep(void)
{
	struct vgpu_item item, found;

	for (uint64_t i = 0; i < 1000; i++) {
		item = (struct vgpu_item){.key = i / 2, .size = 1, .owner = 1 + i % 3, .refs = 1};
		CHECK(vgpu_table_put(&table, &item));
	}
	vgpu_table_sweep(&table, 2, of_owner);
	CHECK_EQ(swept, 333);
	CHECK_EQ(table.count, 667);
	for (uint64_t i = 0; i < 1000; i++)
		while (vgpu_table_take(&table, i / 2, &found))
			CHECK(found.owner != 2);
	CHECK_EQ(table.count, 0);
	vgpu_table_sweep(&table, 1, of_owner);
	CHECK_EQ(swept, 333);
}

int main(void)
{
	test_a_forked_child_begins_anew();
	test_put_get_take();
	test_references();
	test_entries_leave_and_come_back();
	test_threads_and_growth();
	test_sweep();
	free(table.bucket);
	return done("table");
}
