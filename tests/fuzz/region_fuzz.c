/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_fuzz.c - the library's side of grant and cache files that hold anything.
 *
 * An input is a list of writes into a valid grant and a valid cache: those before
 * the library looks whether the files are valid, then those that another process
 * of the job makes afterwards. Nothing may be read or written beyond the files,
 * no sum may wrap, and a reservation that is kept is within the limit.
 *
 * region_fuzz [TRIES [FIRST]]   4000 from the first; the number of a try says all
 *                               of it, and VGPU_FUZZ_TRACE=1 tells the numbers
 * Then single bytes of a grant, of a cache's header and of its slots, before and after
 * they were found valid: every 61st, and each with VGPU_LONG=1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "../../libvgpu/hami_view.h"
#include "../../libvgpu/region_ops.h"
#include "../libvgpu/check.h"
#include "input.h"

#define SMALL_SLOTS 8u    /* slots of the file that is as short as its header says */
#define WRITTEN_SLOTS 32u /* slots that an input reaches, and the last */
#define MOST_WRITES 24u

static uint64_t clock_ns = 1000000000000u;

int fuzz_nanosleep(const struct timespec *t, struct timespec *left)
{
	(void)left;
	clock_ns += (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
	return 0;
}

int fuzz_clock_gettime(clockid_t clock, struct timespec *t)
{
	(void)clock;
	t->tv_sec = (time_t)(clock_ns / 1000000000u);
	t->tv_nsec = (long)(clock_ns % 1000000000u);
	return 0;
}

enum place { GRANT, HEADER, SLOTS, VIEW, ARGUMENTS, PLACES };

struct write {
	uint8_t place, late; /* late: after the files were found valid */
	uint16_t at;         /* in words of 8 bytes */
	uint32_t low, high;
};

struct files {
	struct vgpu_grant grant;
	char *cache; /* the file from its first byte; NULL: only its tail is there */
	struct vgpu_cache c;
	size_t size; /* of the cache file */
	uint64_t arguments[4];
};

static void put(void *to, size_t size, uint16_t at, const struct write *w)
{
	memcpy((char *)to + (size_t)at * 8 % size, (uint64_t[]){(uint64_t)w->high << 32 | w->low},
	       8);
}

static void apply(struct files *f, const struct write *w)
{
	size_t slot = sizeof(struct vgpu_slot), last = VGPU_MAX_SLOTS - 1;

	switch (w->place % PLACES) {
	case GRANT:
		put(&f->grant, sizeof f->grant, w->at, w);
		break;
	case HEADER:
		put(f->c.header, sizeof *f->c.header, w->at, w);
		break;
	case SLOTS:
		if (!f->cache)
			put(f->c.slots, SMALL_SLOTS * slot, w->at, w);
		else if (w->at & 0x8000)
			put(f->c.slots + last, slot, w->at, w);
		else
			put(f->c.slots, WRITTEN_SLOTS * slot, w->at, w);
		break;
	case VIEW:
		if (f->cache)
			put(f->cache, VGPU_HAMI_SIZE, w->at, w);
		break;
	default:
		put(f->arguments, sizeof f->arguments, w->at, w);
	}
}

/* The number of slots that the library may look at. */
static uint32_t visible(const struct files *f)
{
	uint32_t n = f->c.header->high_slot, most = f->c.header->max_slots;

	n = n < most ? n : most;
	return n < VGPU_MAX_SLOTS ? n : VGPU_MAX_SLOTS;
}

static uint64_t clip(__int128 n)
{
	return n < 0 ? 0 : n > UINT64_MAX ? UINT64_MAX : (uint64_t)n;
}

static uint64_t sum_of(const struct files *f, unsigned card)
{
	unsigned __int128 sum = 0;

	for (uint32_t i = 0; i < visible(f); i++)
		sum += f->c.slots[i].card[card].mem;
	return clip((__int128)sum);
}

static void check_reserve(struct files *f, struct vgpu_slot *self, unsigned card)
{
	uint64_t bytes = f->arguments[0], limit = f->arguments[1];
	int64_t outside = (int64_t)f->arguments[2];
	uint64_t before = self->card[card].mem;
	int r = vgpu_mem_reserve(&f->c, self, card, bytes, limit, outside);

	if (r == 0 && limit != 0) {
		CHECK(self->card[card].mem == before + bytes && before + bytes >= bytes);
		CHECK(clip((__int128)sum_of(f, card) + outside) <= limit);
	} else if (r != 0) {
		CHECK(r == -ENOMEM && self->card[card].mem == before);
	}
	before = self->card[card].mem;
	vgpu_mem_release(self, card, bytes);
	CHECK(self->card[card].mem == (before > bytes ? before - bytes : 0));
}

static void check_times(struct files *f, unsigned card)
{
	struct vgpu_budget *b = &f->c.header->budget[card];
	struct vgpu_schedule s = {0};
	uint64_t wait;

	if (!vgpu_schedule_read(&f->grant, card, &s, vgpu_now()))
		CHECK(f->grant.card[card].seq & 1);
	vgpu_budget_refill(b, clock_ns, s.cores, 1000000);
	wait = vgpu_budget_wait(b, s.cores, 1);
	/* More cores than a card has would pay any debt in less than 1 ns. */
	CHECK(s.cores > 100 || (wait == 0) == (b->balance_ns > 0));
	vgpu_window_wait(&s, clock_ns, f->arguments[3], false);
}

static void work(struct files *f)
{
	uint32_t pid = (uint32_t)getpid();
	uint64_t start = vgpu_start_time(pid), left;
	struct vgpu_slot *self = vgpu_slot_claim(&f->c, pid, start);

	for (unsigned card = 0; card < VGPU_MAX_CARDS; card++) {
		uint64_t sum = vgpu_mem_sum(&f->c, card), outside = f->arguments[2];

		CHECK(sum == sum_of(f, card));
		CHECK(vgpu_mem_with(sum, (int64_t)outside) ==
		      clip((__int128)sum + (int64_t)outside));
		check_times(f, card);
	}
	vgpu_slot_reclaim(&f->c, NULL, NULL, &left);
	if (f->cache)
		vgpu_hami_view_update(f->cache, &f->grant, &f->c, clock_ns);
	if (!self)
		return;
	CHECK((size_t)(self - f->c.slots) < VGPU_MAX_SLOTS &&
	      self->owner == vgpu_owner(pid, start));
	CHECK(self->pid == pid && f->c.header->high_slot > (size_t)(self - f->c.slots));
	for (unsigned card = 0; card < VGPU_MAX_CARDS; card++) {
		CHECK(self->card[card].mem == 0);
		check_reserve(f, self, card);
	}
	vgpu_slot_release(self);
	CHECK(self->owner == 0);
}

static void make_valid(struct files *f, uint32_t slots)
{
	memset(&f->grant, 0, sizeof f->grant);
	f->grant.magic = VGPU_GRANT_MAGIC;
	f->grant.version = VGPU_REGION_VERSION;
	f->grant.ncards = 2;
	for (unsigned i = 0; i < f->grant.ncards; i++) {
		snprintf(f->grant.card[i].uuid, VGPU_UUID_LEN, "GPU-%u", i);
		f->grant.card[i].mem_limit = 8ull << 30;
		f->grant.card[i].cores = 30;
	}
	memset(f->c.header, 0, sizeof *f->c.header);
	vgpu_cache_init(f->c.header, &f->grant);
	f->c.header->max_slots = slots;
	f->c.header->high_slot = 3;
	memset(f->c.slots, 0, (f->cache ? WRITTEN_SLOTS + 1 : SMALL_SLOTS) * sizeof *f->c.slots);
	if (f->cache) {
		memset(f->c.slots + VGPU_MAX_SLOTS - 1, 0, sizeof *f->c.slots);
		memset(f->cache, 0, VGPU_HAMI_NOTES_OFFSET + sizeof(struct vgpu_hami_notes));
	}
	f->arguments[0] = 1 << 20;
	f->arguments[1] = 8ull << 30;
	f->arguments[2] = f->arguments[3] = 0;
}

/* Memory of exactly the file's size, so that the sanitizer sees its end. */
static struct files whole_file(void)
{
	static struct files f;

	if (!f.cache) {
		f.size = VGPU_CACHE_SIZE;
		f.cache = calloc(1, f.size);
		CHECK(f.cache != NULL);
		f.c.header = (void *)(f.cache + VGPU_CACHE_OFFSET);
		f.c.slots = (void *)(f.cache + VGPU_SLOTS_OFFSET);
	}
	return f;
}

static struct files short_file(void)
{
	static struct files f;

	if (!f.c.header) {
		f.size = VGPU_SLOTS_OFFSET + SMALL_SLOTS * sizeof(struct vgpu_slot);
		f.c.header = calloc(1, f.size - VGPU_CACHE_OFFSET);
		CHECK(f.c.header != NULL);
		f.c.slots = (void *)(f.c.header + 1);
	}
	return f;
}

static void try_input(const uint8_t *data, size_t size)
{
	size_t n = size / sizeof(struct write);
	bool whole = size % 2 == 0;
	struct files f = whole ? whole_file() : short_file();
	struct write w;

	make_valid(&f, whole ? VGPU_MAX_SLOTS : SMALL_SLOTS);
	for (size_t i = 0; i < n && i < MOST_WRITES; i++) {
		memcpy(&w, data + i * sizeof w, sizeof w);
		if (!(w.late & 1))
			apply(&f, &w);
	}
	if (!vgpu_grant_valid(&f.grant, sizeof f.grant) || !vgpu_cache_valid(f.c.header, f.size))
		return;
	CHECK(f.grant.ncards <= VGPU_MAX_CARDS && f.c.header->max_slots <= VGPU_MAX_SLOTS);
	work(&f);
	/* Only a whole file can be written to afterwards: no file of a job is
	 * shorter, and how long it is was found out when it was mapped. */
	for (size_t i = 0; whole && i < n && i < MOST_WRITES; i++) {
		memcpy(&w, data + i * sizeof w, sizeof w);
		if (w.late & 1)
			apply(&f, &w);
	}
	if (whole)
		work(&f);
}

static uint64_t random_state;

static uint64_t random_word(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	return random_state ^= random_state << 17;
}

/* Numbers at which code breaks, more often than others. */
static uint64_t hostile_word(void)
{
	static const uint64_t edges[] = {
		0,          1,         2,          0x7fffffff, 0x80000000,     0xffffffff,
		1ull << 32, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 1, 4096,
		4097,       8ull << 30};
	uint64_t r = random_word();

	switch (r % 4) {
	case 0:
		return random_word();
	case 1:
		return (random_word() % 3 << 32) | (random_word() % 8192);
	case 2:
		return r >> (r >> 8) % 64;
	default:
		return edges[(r >> 8) % (sizeof edges / sizeof *edges)];
	}
}

static size_t random_input(uint8_t *data)
{
	/* The words that say sizes and who owns what. */
	static const uint16_t hot[] = {2, 3, 4, 5, 16};
	size_t n = random_word() % MOST_WRITES;

	for (size_t i = 0; i < n; i++) {
		uint64_t value = hostile_word(), r = random_word();
		struct write w = {.place = (uint8_t)(r % PLACES),
				  .late = r >> 8 & 1,
				  .at = (uint16_t)(r >> 16),
				  .low = (uint32_t)value,
				  .high = (uint32_t)(value >> 32)};

		if (r >> 32 & 1)
			w.at = w.place == SLOTS
				       ? (uint16_t)(r >> 40) % 8 * (sizeof(struct vgpu_slot) / 8)
				       : hot[(r >> 40) % 5];
		memcpy(data + i * sizeof w, &w, sizeof w);
	}
	return n * sizeof(struct write) + (random_word() & 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_input(data, size);
	return 0;
}

#ifndef FUZZ_NO_MAIN /* libFuzzer, or replay.c, has the main function */
/* Values that a byte is given: all bits, its sign, none, one more. */
static uint8_t nonsense(uint8_t byte, unsigned kind)
{
	const uint8_t all[] = {(uint8_t)~byte, byte ^ 0x80, 0, (uint8_t)(byte + 1)};

	return all[kind % 4];
}

static void try_byte(bool in_grant, size_t at, unsigned kind, bool late)
{
	struct files f = whole_file();
	uint8_t *byte;

	make_valid(&f, VGPU_MAX_SLOTS);
	/* Of a process that is alive, of a dead one, and free. */
	f.c.slots[0].owner = vgpu_owner((uint32_t)getpid(), vgpu_start_time((uint32_t)getpid()));
	f.c.slots[0].pid = (uint32_t)getpid();
	f.c.slots[0].card[0].mem = 1 << 20;
	f.c.slots[1].owner = vgpu_owner(0x3ffff0, 7);
	f.c.slots[1].card[1].mem = 1 << 21;
	byte = (uint8_t *)(in_grant ? (void *)&f.grant : f.c.header) + at;
	if (!late)
		*byte = nonsense(*byte, kind);
	if (!vgpu_grant_valid(&f.grant, sizeof f.grant) || !vgpu_cache_valid(f.c.header, f.size))
		return;
	if (late)
		*byte = nonsense(*byte, kind);
	work(&f);
}

static void each_byte(size_t every)
{
	size_t grant = sizeof(struct vgpu_grant);
	size_t all = grant + sizeof(struct vgpu_cache_header) + 3 * sizeof(struct vgpu_slot);

	for (size_t at = 0; at < all; at += every)
		for (unsigned kind = 0; kind < 8; kind++)
			try_byte(at < grant, at < grant ? at : at - grant, kind, kind / 4);
}

int main(int argc, char **argv)
{
	uint8_t data[MOST_WRITES * sizeof(struct write) + 1] = {0};
	long tries = argc > 1 ? atol(argv[1]) : 4000, first = argc > 2 ? atol(argv[2]) : 0;
	bool trace = getenv("VGPU_FUZZ_TRACE") != NULL;

	for (long i = first; i < first + tries; i++) {
		if (trace)
			fprintf(stderr, "try %ld\n", i);
		random_state = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u; /* never 0: odd factor */
		try_input(data, random_input(data));
	}
	each_byte(getenv("VGPU_LONG") ? 1 : 61);
	return done("region_fuzz");
}
#endif
