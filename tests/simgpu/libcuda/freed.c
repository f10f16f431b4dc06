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

#include <stdlib.h>

struct freed {
	CUmemoryPool pool;
	uint64_t va, bytes;
	uint32_t stream, gen;
	uint64_t index; /* of the free in its stream */
	struct freed *next;
};
static struct freed *all;

static bool stream_gone(const struct freed *f)
{
	return drv.st->stream[f->stream].gen != f->gen;
}

static bool passed(const struct freed *f)
{
	return stream_gone(f) || drv.st->stream[f->stream].done > f->index;
}

static bool behind(CUstream s, const struct freed *f)
{
	if (f->stream == s->slot && f->gen == s->gen)
		return true;
	for (unsigned i = 0; i < s->nafter; i++)
		if (s->after[i].stream == f->stream && s->after[i].gen == f->gen &&
		    s->after[i].index > f->index)
			return true;
	return false;
}

static void drop(struct freed **link)
{
	struct freed *f = *link;

	*link = f->next;
	free(f);
}

static bool freed_add(CUmemoryPool p, CUstream s, uint64_t index, uint64_t va, uint64_t bytes)
{
	struct freed *f = calloc(1, sizeof(*f));

	if (!f)
		return false;
	*f = (struct freed){p, va, bytes, s->slot, s->gen, index, all};
	all = f;
	return true;
}

void freed_forget(CUmemoryPool p, uint64_t va)
{
	for (struct freed **link = &all; *link;)
		if ((*link)->pool == p && (!va || (*link)->va == va))
			drop(link);
		else
			link = &(*link)->next;
}

uint64_t freed_kept(CUmemoryPool p)
{
	uint64_t sum = 0;

	for (struct freed **link = &all; *link;) {
		if (stream_gone(*link)) {
			drop(link);
			continue;
		}
		sum += (*link)->pool == p ? (*link)->bytes : 0;
		link = &(*link)->next;
	}
	return sum;
}

uint64_t freed_not_for(CUmemoryPool p, CUstream s)
{
	uint64_t sum = 0;

	for (struct freed *f = all; f; f = f->next)
		if (f->pool == p && !passed(f) && !(s && behind(s, f)))
			sum += f->bytes;
	return sum;
}

void freed_take(CUmemoryPool p, CUstream s, uint64_t bytes)
{
	for (int any = 0; any < 2; any++)
		for (struct freed **link = &all; *link && bytes;) {
			struct freed *f = *link;
			uint64_t some = f->bytes < bytes ? f->bytes : bytes;

			if (f->pool != p || (!any && !passed(f) && !(s && behind(s, f)))) {
				link = &f->next;
				continue;
			}
			if (!passed(f) && any && s)
				stream_submit(s,
					      &(struct work){.kind = SIM_WAIT,
							     .dep_stream = f->stream,
							     .dep_gen = f->gen,
							     .dep_index = f->index},
					      NULL);
			bytes -= some;
			f->bytes -= some;
			if (f->bytes)
				link = &f->next;
			else
				drop(link);
		}
}

static void seen_in(uint32_t stream, uint32_t gen, uint64_t index)
{
	for (struct freed **link = &all; *link;)
		if ((*link)->stream == stream && (*link)->gen == gen && (*link)->index <= index)
			drop(link);
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
	for (struct freed **link = &all; *link;)
		if ((!p || (*link)->pool == p) && passed(*link))
			drop(link);
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
	if (p)
		p->used -= size;
	rc = stream_submit(s, &w, &index);
	if (p && !rc)
		freed_add(p, s, index, dptr, size);
	return drv_leave(rc);
}
