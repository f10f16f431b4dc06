// SPDX-License-Identifier: Apache-2.0
/*
 * freed.c - memory of pools that was freed in a stream.
 *
 * As seen with driver 580 on an H100: a pool does not count it as used from the call on. Another
 * allocation has its pages in the same stream, in one that waits for an event behind the free, and
 * in any once the stream has come to the free. The card has them back only when the host has waited
 * for that: for the stream, an event behind the free, or the context; to ask is not enough.
 */
#define _GNU_SOURCE
#include "local.h"

static bool stream_gone(const struct piece *f)
{
	return drv.st->stream[f->stream].gen != f->gen;
}

static bool passed(const struct piece *f)
{
	return stream_gone(f) || drv.st->stream[f->stream].done > f->index;
}

static bool behind(CUstream s, const struct piece *f)
{
	if (f->stream == s->slot && f->gen == s->gen)
		return true;
	for (unsigned i = 0; i < s->nafter; i++)
		if (s->after[i].stream == f->stream && s->after[i].gen == f->gen &&
		    s->after[i].index > f->index)
			return true;
	return false;
}

bool freed_for(const struct piece *f, CUstream s)
{
	return passed(f) || (s && behind(s, f));
}

static void freed_add(CUmemoryPool p, CUstream s, uint64_t index, uint64_t va)
{
	for (struct piece *x = all_pieces; x; x = x->next)
		if (x->pool == p && x->va == va && !x->freed) {
			x->freed = true;
			x->stream = s->slot;
			x->gen = s->gen;
			x->index = index;
		}
}

uint64_t freed_kept(CUmemoryPool p)
{
	uint64_t sum = 0;

	for (struct piece **link = &all_pieces; *link;) {
		if ((*link)->freed && stream_gone(*link)) {
			piece_drop(link);
			continue;
		}
		sum += (*link)->pool == p && (*link)->freed ? (*link)->bytes : 0;
		link = &(*link)->next;
	}
	return sum;
}

void freed_take(CUmemoryPool p, CUstream s, uint64_t at, uint64_t bytes)
{
	for (struct piece **link = &all_pieces; *link;) {
		struct piece *f = *link, rest = *f;
		uint64_t end = f->at + f->bytes;

		if (f->pool != p || !f->freed || end <= at || f->at >= at + bytes) {
			link = &f->next;
			continue;
		}
		if (s && !freed_for(f, s))
			stream_submit(s,
				      &(struct work){.kind = SIM_WAIT,
						     .dep_stream = f->stream,
						     .dep_gen = f->gen,
						     .dep_index = f->index},
				      NULL);
		rest.at = at + bytes;
		rest.bytes = end > rest.at ? end - rest.at : 0;
		f->bytes = f->at < at ? at - f->at : 0;
		if (f->bytes)
			link = &f->next;
		else
			piece_drop(link);
		if (rest.bytes)
			piece_add(&rest);
	}
}

static void seen_in(uint32_t stream, uint32_t gen, uint64_t index)
{
	for (struct piece **link = &all_pieces; *link;)
		if ((*link)->freed && (*link)->stream == stream && (*link)->gen == gen &&
		    (*link)->index <= index)
			piece_drop(link);
		else
			link = &(*link)->next;
}

/* What the stream had waited for before its op. */
static void seen_before(CUstream s, uint64_t index)
{
	for (unsigned i = 0; i < s->nafter; i++)
		if (s->after[i].at < index)
			seen_in(s->after[i].stream, s->after[i].gen, s->after[i].index);
}

void freed_seen(uint32_t stream, uint32_t gen, uint64_t index)
{
	seen_in(stream, gen, index);
	for (CUcontext c = drv.contexts; c; c = c->next)
		for (CUstream s = c->streams; s; s = s->next)
			if (s->slot == stream && s->gen == gen)
				seen_before(s, index);
}

void freed_all_seen(CUmemoryPool p)
{
	for (struct piece **link = &all_pieces; *link;)
		if ((*link)->freed && (!p || (*link)->pool == p) && passed(*link))
			piece_drop(link);
		else
			link = &(*link)->next;
}

void stream_after(CUstream s, uint64_t at, const struct CUevent_st *e)
{
	unsigned i = 0;

	while (i < s->nafter && (s->after[i].stream != e->stream || s->after[i].gen != e->gen))
		i++;
	if (i == SIM_AFTER)
		i = 0;
	else if (i == s->nafter)
		s->nafter++;
	s->after[i].stream = e->stream;
	s->after[i].gen = e->gen;
	s->after[i].index = e->index;
	s->after[i].at = at;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct work w = {.kind = SIM_MARK};
	uint64_t index = 0, size;
	CUmemoryPool p;
	CUstream s;
	struct block *b;
	CUresult rc;

	ENTER(NEED_CTX);
	s = stream_of(hStream);
	if (!s)
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	if (s->capture)
		return drv_leave(graph_add_free(s->capture->graph, dptr, NULL));
	b = block_find(dptr);
	if (b && b->va == dptr && (b->imported || b->external)) {
		return drv_leave(export_free_import(b));
	}
	if (!b || b->va != dptr || b->freeing ||
	    (b->kind != BLOCK_POOL && b->kind != BLOCK_LINEAR && b->kind != BLOCK_MANAGED))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	w.eff = effect_new(EFF_FREE);
	if (!w.eff)
		return drv_leave(CUDA_ERROR_OUT_OF_MEMORY);
	w.eff->dst = dptr;
	b->freeing = true;
	p = b->kind == BLOCK_POOL ? b->pool : NULL;
	size = (b->size + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
	b->given = p != NULL;
	if (p) {
		p->used -= size;
		p->given++;
	}
	rc = stream_submit(s, &w, &index);
	if (p && !rc)
		freed_add(p, s, index, dptr);
	return drv_leave(rc);
}
