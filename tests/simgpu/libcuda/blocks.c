// SPDX-License-Identifier: Apache-2.0
/* blocks.c - device addresses, what lies behind them, and what it contains. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA (256ull << 30)

/* all blocks of the process by address */
static struct block **table;
static size_t nblocks, room;
static uint64_t arena_begin, arena_at, arena_end;

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static size_t lower_bound(uint64_t va)
{
	size_t lo = 0, hi = nblocks;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (table[mid]->va <= va)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The first place from at on where no block is. 0: the arena has none. Mappings are inside their
 * reservation, so only that counts. */
static uint64_t gap(uint64_t at, uint64_t size, uint64_t align)
{
	for (at = round_up(at, align); at + size <= arena_end;) {
		size_t i = lower_bound(at + size - 1);
		uint64_t end = 0;

		while (i > 0 && table[i - 1]->kind == BLOCK_MAPPED)
			i--;
		if (i > 0)
			end = round_up(table[i - 1]->va + table[i - 1]->size,
				       table[i - 1]->small || table[i - 1]->kind == BLOCK_POOL
					       ? POOL_ALIGN
					       : DRV_PAGE);
		if (end <= at)
			return at;
		at = round_up(end, align);
	}
	return 0;
}

/* Address space without access rights: nothing can be read or written there. Freed addresses are used
 * again when the arena has no others. */
uint64_t va_take(uint64_t size, uint64_t align)
{
	uint64_t at = gap(arena_at, size, align);

	if (!at)
		at = gap(arena_begin, size, align);
	if (!at) {
		uint64_t want = round_up(size + align > ARENA ? size + align : ARENA, DRV_PAGE);
		void *p = MAP_FAILED;

		/* under a limit of address space, take what is needed and no more */
		for (; p == MAP_FAILED && want >= size + align; want /= 4)
			p = mmap(NULL, want, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
				 -1, 0);
		if (p == MAP_FAILED)
			return 0;
		arena_begin = (uintptr_t)p;
		arena_end = arena_begin + want * 4;
		at = round_up(arena_begin, align);
	}
	arena_at = at + size;
	return at;
}

void va_give(uint64_t va, uint64_t size)
{
	if (va + size == arena_at)
		arena_at = va;
}

struct block *block_add(const struct block *b)
{
	struct block *copy = malloc(sizeof(*copy));
	size_t at = lower_bound(b->va);

	if (!copy)
		return NULL;
	if (nblocks == room) {
		size_t n = room ? room * 2 : 64;
		struct block **t = realloc(table, n * sizeof(*t));

		if (!t) {
			free(copy);
			return NULL;
		}
		table = t;
		room = n;
	}
	*copy = *b;
	memmove(table + at + 1, table + at, (nblocks - at) * sizeof(*table));
	table[at] = copy;
	nblocks++;
	return copy;
}

/* A mapping lies inside its reservation, so the nearest start is looked at
 * first and the one before it, if that fails. */
struct block *block_find(uint64_t va)
{
	size_t at = lower_bound(va);

	for (; at > 0; at--) {
		struct block *b = table[at - 1];

		if (va < b->va + b->size || (va == b->va && !b->size))
			return b;
		if (b->kind != BLOCK_MAPPED)
			return NULL;
	}
	return NULL;
}

struct block *block_at(size_t i)
{
	return i < nblocks ? table[i] : NULL;
}

void block_remove(struct block *b)
{
	for (size_t at = lower_bound(b->va); at > 0; at--) {
		if (table[at - 1] != b)
			continue;
		memmove(table + at - 1, table + at, (nblocks - at) * sizeof(*table));
		nblocks--;
		break;
	}
	if (b->kept)
		munmap(b->kept, b->size < DRV_KEEP ? b->size : DRV_KEEP);
	free(b);
}

/* The bytes behind an address, and how many follow it: NULL for device memory
 * that was never written or is beyond what is kept. */
static unsigned char *bytes_at(uint64_t va, uint64_t *n, bool write)
{
	struct block *b = block_find(va);
	uint64_t keep, off;

	if (!b || b->kind == BLOCK_MANAGED || b->kind == BLOCK_HOST || b->kind == BLOCK_REGISTERED)
		return (unsigned char *)(uintptr_t)va;
	off = va - b->va;
	keep = b->size < DRV_KEEP ? b->size : DRV_KEEP;
	if (off + *n > b->size)
		*n = b->size > off ? b->size - off : 0;
	if (off >= keep)
		return NULL;
	if (*n > keep - off)
		*n = keep - off;
	if (!b->kept && write) {
		b->kept = mmap(NULL, keep, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (b->kept == MAP_FAILED)
			b->kept = NULL;
	}
	return b->kept ? b->kept + off : NULL;
}

void content_copy(uint64_t dst, uint64_t src, const void *snapshot, uint64_t n)
{
	uint64_t from_n = n, to_n = n;
	const unsigned char *from = snapshot ? snapshot : bytes_at(src, &from_n, false);
	unsigned char *to;

	to = bytes_at(dst, &to_n, true);
	if (to_n > n)
		to_n = n;
	if (!to)
		return;
	if (!from)
		from_n = 0;
	if (from_n > to_n)
		from_n = to_n;
	if (from_n)
		memmove(to, from, from_n);
	/* beyond what is kept of the source there are zeroes */
	memset(to + from_n, 0, to_n - from_n);
}

void content_fill(uint64_t dst, uint64_t value, unsigned width, uint64_t n)
{
	uint64_t bytes = n * width;
	unsigned char *to = bytes_at(dst, &bytes, true);

	if (!to)
		return;
	if (width == 1) {
		memset(to, (int)value, bytes);
		return;
	}
	for (uint64_t i = 0; i + width <= bytes; i += width)
		memcpy(to + i, &value, width);
}

/* One aligned word of 4 or 8 bytes. */
bool content_load(uint64_t va, void *out, unsigned width)
{
	uint64_t n = width;
	const unsigned char *from = bytes_at(va, &n, false);

	memset(out, 0, width);
	if (!from || n < width || va % width)
		return false;
	/* a program may write the same word meanwhile */
	if (width == 4)
		*(uint32_t *)out = __atomic_load_n((const uint32_t *)from, __ATOMIC_SEQ_CST);
	else
		*(uint64_t *)out = __atomic_load_n((const uint64_t *)from, __ATOMIC_SEQ_CST);
	return true;
}
