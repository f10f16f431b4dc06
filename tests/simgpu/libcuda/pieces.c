// SPDX-License-Identifier: Apache-2.0
/*
 * pieces.c - where in a pool its allocations are.
 *
 * The places of a pool are numbers from 0 on, in steps of 32 MiB. A step has memory of the card
 * from its start on. An allocation is one piece. It goes to the places that lack the least memory.
 * So a pool grows if its free memory is in pieces that are too small. A step without a piece can go
 * back to the card.
 */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <string.h>

/* of all pools, by place */
struct piece *all_pieces;

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

struct piece *piece_add(const struct piece *piece)
{
	struct piece *copy = malloc(sizeof(*copy)), **link = &all_pieces;

	if (!copy)
		return NULL;
	*copy = *piece;
	while (*link && (*link)->at < copy->at)
		link = &(*link)->next;
	copy->next = *link;
	*link = copy;
	return copy;
}

void piece_drop(struct piece **link)
{
	struct piece *gone = *link;

	*link = gone->next;
	free(gone);
}

/* Bytes that the steps of these places lack; pages: that the pages of these places lack. */
static uint64_t lacking(CUmemoryPool p, uint64_t at, uint64_t bytes, bool pages)
{
	uint64_t sum = 0;

	for (uint64_t i = at / POOL_STEP; i * POOL_STEP < at + bytes; i++) {
		uint64_t have = i < p->nsteps ? p->step[i] : 0;
		uint64_t need = min(at + bytes - i * POOL_STEP, POOL_STEP);

		if (need > have)
			sum += (pages ? round_up(need, DRV_PAGE) : POOL_STEP) - have;
	}
	return sum;
}

static bool has_steps(CUmemoryPool p, uint64_t end)
{
	size_t n = (end + POOL_STEP - 1) / POOL_STEP;
	uint32_t *more = n > p->nsteps ? realloc(p->step, n * sizeof(*more)) : p->step;

	if (!more)
		return false;
	if (n > p->nsteps) {
		memset(more + p->nsteps, 0, (n - p->nsteps) * sizeof(*more));
		p->nsteps = n;
	}
	p->step = more;
	return true;
}

/* Finds the start of the places from begin to end that lack least. *least is how much they lack, and
 * the least before. */
static void best_between(CUmemoryPool p, uint64_t begin, uint64_t end, uint64_t bytes,
			 uint64_t *best, uint64_t *least)
{
	for (uint64_t at = begin; *least && at <= end && end - at >= bytes;
	     at = at / POOL_STEP * POOL_STEP + POOL_STEP) {
		uint64_t lack = lacking(p, at, bytes, false);

		if (lack < *least) {
			*least = lack;
			*best = at;
		}
	}
}

static uint64_t place_for(CUmemoryPool p, CUstream s, bool any, uint64_t bytes)
{
	uint64_t end = 0, best = 0, least = UINT64_MAX;

	for (struct piece *x = all_pieces; x && least; x = x->next) {
		if (x->pool != p || (x->freed && (any || freed_for(x, s))))
			continue;
		if (x->at > end)
			best_between(p, end, x->at, bytes, &best, &least);
		if (x->at + x->bytes > end)
			end = x->at + x->bytes;
	}
	best_between(p, end, round_up(end, POOL_STEP) + p->nsteps * POOL_STEP + bytes, bytes, &best,
		     &least);
	return best;
}

/* Charges the memory that the places lack: whole steps, or pages if the card is nearly full. */
static CUresult fill(CUmemoryPool p, uint64_t at, uint64_t bytes)
{
	uint64_t lack = lacking(p, at, bytes, false);
	bool pages = mem_charge(p->card, lack) != CUDA_SUCCESS;

	if (pages) {
		lack = lacking(p, at, bytes, true);
		if (mem_charge(p->card, lack))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (uint64_t i = at / POOL_STEP; i * POOL_STEP < at + bytes; i++) {
		uint64_t need = min(at + bytes - i * POOL_STEP, POOL_STEP);

		if (need > p->step[i])
			p->step[i] = (uint32_t)(pages ? round_up(need, DRV_PAGE) : POOL_STEP);
	}
	p->reserved += lack;
	if (p->reserved > p->reserved_high)
		p->reserved_high = p->reserved;
	return CUDA_SUCCESS;
}

struct piece *pieces_take(CUmemoryPool p, CUstream s, bool any, uint64_t bytes)
{
	struct piece *piece = piece_add(
		&(struct piece){.pool = p, .at = place_for(p, s, any, bytes), .bytes = bytes});

	if (!piece)
		return NULL;
	if (has_steps(p, piece->at + bytes) && fill(p, piece->at, bytes) == CUDA_SUCCESS) {
		freed_take(p, s, piece->at, bytes);
		return piece;
	}
	for (struct piece **link = &all_pieces; *link; link = &(*link)->next)
		if (*link == piece) {
			piece_drop(link);
			break;
		}
	return NULL;
}

/* Takes the memory of steps without a piece away from the pool, beginning with the last one, as long
 * as the pool keeps so many bytes. Only steps of the places from begin to end. Returns the bytes. */
static uint64_t cut(CUmemoryPool p, uint64_t begin, uint64_t end, uint64_t keep)
{
	bool *used = calloc(p->nsteps + 1, sizeof(*used));
	uint64_t sum = 0;

	for (struct piece *x = all_pieces; used && x; x = x->next)
		for (uint64_t i = x->at / POOL_STEP;
		     x->pool == p && i * POOL_STEP < x->at + x->bytes; i++)
			used[i] = true;
	for (size_t i = p->nsteps; used && i-- > 0;)
		if (!used[i] && i >= begin / POOL_STEP && i * POOL_STEP < end &&
		    p->reserved - p->step[i] >= keep) {
			sum += p->step[i];
			p->reserved -= p->step[i];
			p->step[i] = 0;
		}
	free(used);
	return sum;
}

uint64_t pieces_shrink(CUmemoryPool p, uint64_t keep)
{
	return cut(p, 0, UINT64_MAX, round_up(keep, POOL_STEP));
}

uint64_t pieces_detach(CUmemoryPool p, uint64_t va, uint64_t at, uint64_t bytes)
{
	pieces_forget(p, va);
	return cut(p, at, at + bytes, 0);
}

void pieces_forget(CUmemoryPool p, uint64_t va)
{
	for (struct piece **link = &all_pieces; *link;)
		if ((*link)->pool == p && (!va || (*link)->va == va))
			piece_drop(link);
		else
			link = &(*link)->next;
}

void pieces_unname(CUmemoryPool p, uint64_t va)
{
	for (struct piece *x = all_pieces; x; x = x->next)
		if (x->pool == p && x->va == va)
			x->va = 0;
}
