// SPDX-License-Identifier: Apache-2.0
/* records.c - context switches: what a card writes down, and how the resource manager
 * hands it out. */
#define _GNU_SOURCE
#include "apitest.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../librm/local.h"

#define RECORDS 64u
#define MS 1000000ull

static struct sim_state *st;
static struct client c;
static uint32_t subdevice, header, records, buffer;
static const struct buffer_header *head;
static const struct buffer_record *record;

static uint32_t make(uint32_t parent, uint32_t cls, void *params, uint32_t size, uint32_t *handle)
{
	struct rm_alloc a = {c.handle, parent, 0, cls, (uintptr_t)params, size, 0xffff};

	TRUE(rm_call(st, &c, ESC_ALLOC, sizeof(a), &a, NULL));
	*handle = a.object;
	return a.status;
}

static uint32_t control(uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct rm_control k = {c.handle, object, cmd, 0, (uintptr_t)params, size, 0xffff};

	TRUE(rm_call(st, &c, ESC_CONTROL, sizeof(k), &k, NULL));
	return k.status;
}

static bool any_file(int fd)
{
	return fd >= 0;
}

static uint32_t map(uint32_t memory, uint64_t length, int fd, uint32_t flags)
{
	struct rm_map m = {.client = c.handle,
			   .device = c.handle,
			   .memory = memory,
			   .length = length,
			   .flags = flags,
			   .fd = fd};

	TRUE(rm_call(st, &c, ESC_MAP, sizeof(m), &m, any_file));
	return m.status;
}

static const void *mapped(uint32_t memory, uint64_t length)
{
	int fd = memfd_create("test", MFD_ALLOW_SEALING);
	void *at;

	EQ(map(memory, length, fd, 0), NV_INVALID_ARGUMENT); /* it may only be read */
	EQ(map(memory, length + 4096, fd, 1), NV_INVALID_ARGUMENT);
	EQ(map(memory, length, -1, 1), NV_INVALID_ARGUMENT);
	EQ(map(memory, length, fd, 1), NV_OK);
	TRUE(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	at = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	TRUE(at != MAP_FAILED);
	close(fd);
	return at;
}

static void make_all(void)
{
	struct memory_params m = {.attr2 = 1u << 22, .size = 4096};
	struct device_params d = {.instance = 0};
	uint32_t device, root, one = 1, zero = 0;

	st = sim_open(getenv("SIMGPU_STATE"));
	TRUE(st);
	EQ(make(0, 0x80, &d, sizeof(d), &device), NV_INVALID_CLIENT); /* first the client */
	EQ(make(0, 0x41, NULL, 0, &root), NV_OK);
	EQ(root, c.handle);
	d.instance = st->ncards;
	EQ(make(root, 0x80, &d, sizeof(d), &device), NV_INVALID_ARGUMENT);
	d.instance = 0;
	EQ(make(root, 0x80, &d, sizeof(d) - 8, &device), NV_INVALID_PARAM_STRUCT);
	EQ(make(root, 0x81, &d, sizeof(d), &device), NV_INVALID_CLASS);
	EQ(make(root, 0x80, &d, sizeof(d), &device), NV_OK);
	EQ(make(root, 0x2080, &zero, 4, &subdevice), NV_INVALID_OBJECT_PARENT);
	EQ(make(device, 0x2080, &one, 4, &subdevice), NV_INVALID_ARGUMENT);
	EQ(make(device, 0x2080, &zero, 4, &subdevice), NV_OK);
	EQ(make(root, 0x90CE, &m, sizeof(m), &header), NV_OK);
	EQ(make(root, 0x90CE, &m, sizeof(m), &records), NV_OK);
	head = mapped(header, 4096);
	record = mapped(records, 4096);
}

static uint32_t make_buffer(uint32_t n, uint32_t header_memory)
{
	struct event_buffer_params p = {.record_size = 32,
					.records = n,
					.header = header_memory,
					.record = records,
					.subdevice = subdevice};

	return make(c.handle, 0x90CD, &p, sizeof(p), &buffer);
}

static uint32_t bind_buffer(uint32_t detail, uint8_t all_users)
{
	struct bind_params p = {buffer, 32, detail, 0, all_users};

	return control(subdevice, 0x20801231, &p, sizeof(p));
}

static void flush(void)
{
	EQ(control(buffer, 0x90CD0104, NULL, 0), NV_OK);
}

static uint32_t get(uint32_t n)
{
	struct get_params p = {n, 0};

	return control(buffer, 0x90CD0102, &p, sizeof(p));
}

/* What the driver refuses, and with which status. */
void case_rm_refuses(void)
{
	struct memory_params m = {.size = 4096}; /* its user could write it */
	struct enable_params on = {1, 1};
	struct rm_control k = {0};
	uint32_t writable, other;

	make_all();
	EQ(make(c.handle, 0x90CE, &m, sizeof(m), &writable), NV_OK);
	EQ(make_buffer(RECORDS, writable), NV_INVALID_ARGUMENT);
	EQ(make_buffer(4096 / 32 + 1, header), NV_INVALID_ARGUMENT);
	EQ(make_buffer(RECORDS, subdevice), NV_OBJECT_NOT_FOUND);
	EQ(make_buffer(RECORDS, header), NV_OK);
	EQ(bind_buffer(2, 1), NV_INVALID_ARGUMENT);
	EQ(bind_buffer(1, 0), NV_INSUFFICIENT_PERMISSIONS);
	on.flags = 4;
	EQ(control(buffer, 0x90CD0101, &on, sizeof(on)), NV_INVALID_ARGUMENT);
	EQ(get(RECORDS), NV_INVALID_ARGUMENT);
	EQ(control(buffer, 0x90CD0103, NULL, 0), NV_INVALID_COMMAND);
	EQ(control(subdevice, 0x90CD0104, NULL, 0), NV_INVALID_COMMAND);
	EQ(control(0x1234, 0x90CD0104, NULL, 0), NV_INVALID_OBJECT_HANDLE);
	EQ(control(c.handle, 0x201, &other, sizeof(other)), NV_INVALID_PARAM_STRUCT);
	k.client = c.handle + 1;
	TRUE(rm_call(st, &c, ESC_CONTROL, sizeof(k), &k, NULL));
	EQ(k.status, NV_INVALID_CLIENT);
	TRUE(!rm_call(st, &c, ESC_CONTROL, sizeof(k) + 8, &k, NULL));
	TRUE(!rm_call(st, &c, 0x29, sizeof(k), &k, NULL)); /* objects go with their file */
	if (setresuid(65534, 65534, 65534) == 0)
		EQ(bind_buffer(1, 1), NV_INSUFFICIENT_PERMISSIONS);
	rm_free(st, &c);
	EQ(c.handle, 0);
}

static void start_reading(void)
{
	struct enable_params on = {1, 1};

	make_all();
	EQ(make_buffer(RECORDS, header), NV_OK);
	EQ(bind_buffer(1, 1), NV_OK);
	EQ(bind_buffer(1, 1), NV_INVALID_ARGUMENT); /* it has it */
	EQ(control(buffer, 0x90CD0101, &on, sizeof(on)), NV_OK);
	flush();
	EQ(head->put, 0);
}

/* Two contexts take turns: each comes and leaves, a switch apart, and who stays on the
 * card leaves no record, busy or not. */
void case_records(void)
{
	uint64_t before, coming, busy = 0, had = 0;
	CUfunction f;
	CUcontext other;
	CUmodule m;
	uint32_t n;

	start();
	f = function("us");
	start_reading();
	run_us(f, 1000, NULL);
	OK(cuCtxSynchronize());
	flush();
	EQ(head->put, 1); /* it came, and is there still */
	EQ(record[0].tag, TAG_START);
	EQ(record[0].pid, getpid());
	WITHIN(record[0].at / 1e9, time(NULL) - 2, time(NULL) + 1);
	run_us(f, 1000, NULL);
	OK(cuCtxSynchronize());
	flush();
	EQ(head->put, 1);

	OK(cuCtxCreate_v2(&other, 0, 0));
	before = st->ctx[st->card[0].cur - 1].busy_ns;
	OK(cuModuleLoadData(&m, kernels_ptx));
	OK(cuModuleGetFunction(&f, m, "us"));
	run_us(f, 20000, NULL);
	OK(cuCtxPopCurrent_v2(&other));
	run_us(function("us"), 20000, NULL);
	OK(cuCtxSynchronize());
	OK(cuCtxPushCurrent_v2(other));
	OK(cuCtxSynchronize());
	flush();
	n = head->put;
	coming = st->card[0].conf.switch_ns - st->card[0].conf.switch_away_ns;
	WITHIN(n, 15, 50);
	EQ(head->count, n);
	EQ(head->dropped, 0);
	for (uint32_t i = 1; i < n; i++) {
		EQ(record[i].tag, i % 2 ? TAG_END : TAG_START);
		TRUE(record[i].at >= record[i - 1].at);
		if (i % 2 == 0)
			EQ(record[i].at - record[i - 1].at, st->card[0].conf.switch_away_ns);
		else if (i > 1)
			had += record[i].at - record[i - 1].at - coming;
	}
	for (int i = 0; i < SIM_MAX_CTX; i++)
		busy += st->ctx[i].used ? st->ctx[i].busy_ns : 0;
	/* the one that was there before, and the one that is there still, are not in it */
	WITHIN(busy - before - had, 0, 30 * MS);

	run_us(f, 1000, NULL);
	OK(cuCtxSynchronize());
	flush();
	n = head->put;
	EQ(record[n - 1].tag, TAG_START);
	OK(cuCtxDestroy_v2(other)); /* whoever ends on the card leaves it */
	flush();
	EQ(head->put, n + 1);
	EQ(record[n].tag, TAG_END);
	EQ(get(n + 1), NV_OK);
	EQ(head->count, 0);
}

/* A full buffer keeps the oldest and counts what it drops, until it is read. */
void case_records_dropped(void)
{
	CUcontext ctx = start();
	uint64_t first;

	TRUE(ctx);
	run_us(function("us"), 100, NULL);
	OK(cuCtxSynchronize());
	start_reading();
	first = st->card[0].records;
	sim_lock(st);
	for (int i = 0; i < 100; i++)
		sim_note(st, st->card[0].cur - 1, i % 2);
	sim_unlock(st);
	flush();
	EQ(head->put, RECORDS - 1);
	EQ(head->dropped, 100 - (RECORDS - 1));
	EQ(record[0].at, sim_switch_at(st, 0, first)->at_ns);
	EQ(get(RECORDS - 1), NV_OK);
	EQ(head->dropped, 0);
	sim_lock(st);
	for (int i = 0; i < 5; i++)
		sim_note(st, st->card[0].cur - 1, false);
	sim_unlock(st);
	flush();
	EQ(head->put, 4); /* round the end */
	EQ(head->count, 5);
	EQ(head->dropped, 0);
	EQ(get(4), NV_OK);

	/* of what the card itself has forgotten nothing is told but the number */
	sim_lock(st);
	for (int i = 0; i < SIM_SWITCHES + 1; i++)
		sim_note(st, st->card[0].cur - 1, i % 2);
	sim_unlock(st);
	flush();
	EQ(head->put, 4);
	EQ(head->dropped, SIM_SWITCHES + 1);
}
