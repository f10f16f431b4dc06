/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - a hash table by address or handle, of this process. Its lock is taken for a few
 * instructions, never across a driver call.
 */
#include <stdlib.h>

#include "table.h"

#define FIRST_BUCKETS 256u

static size_t bucket_of(const struct vgpu_table *t, uint64_t key)
{
	/* Addresses are aligned: mix before taking the low bits. */
	key ^= key >> 31;
	key *= 0x9e3779b97f4a7c15ull;
	return (key >> 32) & (t->buckets - 1);
}

static void push(struct vgpu_item **list, struct vgpu_item *item)
{
	item->next = *list;
	*list = item;
}

/* The lock is taken, and there are buckets. */
static void insert(struct vgpu_table *t, struct vgpu_item *item)
{
	push(&t->bucket[bucket_of(t, item->key)], item);
	STORE(&t->count, t->count + 1);
}

/* Takes an entry out of the table. */
static struct vgpu_item *unlinked(struct vgpu_table *t, struct vgpu_item **p)
{
	struct vgpu_item *item = *p;

	*p = item->next;
	STORE(&t->count, t->count - 1);
	return item;
}

static bool grow(struct vgpu_table *t)
{
	size_t old = t->buckets;
	struct vgpu_item **from = t->bucket,
			 **bucket = calloc(old ? old * 2 : FIRST_BUCKETS, sizeof *bucket);

	if (!bucket)
		return old != 0; /* longer chains, no harm */
	t->bucket = bucket;
	t->buckets = old ? old * 2 : FIRST_BUCKETS;
	for (size_t i = 0; i < old; i++)
		while (from[i])
			insert(t, unlinked(t, &from[i]));
	free(from);
	return true;
}

static struct vgpu_item **find(struct vgpu_table *t, uint64_t key)
{
	struct vgpu_item **p;

	if (!t->buckets)
		return NULL;
	for (p = &t->bucket[bucket_of(t, key)]; *p; p = &(*p)->next)
		if ((*p)->key == key)
			return p;
	return NULL;
}

/* The lock is taken. */
static bool put(struct vgpu_table *t, const struct vgpu_item *item)
{
	struct vgpu_item *copy = t->count < t->buckets || grow(t) ? malloc(sizeof *copy) : NULL;

	if (!copy)
		return false;
	*copy = *item;
	insert(t, copy);
	return true;
}

bool vgpu_table_put(struct vgpu_table *t, const struct vgpu_item *item)
{
	VGPU_LOCK(&t->lock);

	return put(t, item);
}

bool vgpu_table_add(struct vgpu_table *t, struct vgpu_item *item)
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item **p = find(t, item->key);

	if (p)
		*item = **p;
	return p || put(t, item);
}

bool vgpu_table_get(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item **p = find(t, key);

	if (p)
		*out = **p;
	return p;
}

bool vgpu_table_take(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item **p = find(t, key);

	if (!p)
		return false;
	*out = **p;
	free(unlinked(t, p));
	return true;
}

struct vgpu_item *vgpu_table_detach(struct vgpu_table *t, uint64_t key)
{
	struct vgpu_item *list = NULL, **p;

	if (!LOAD(&t->count))
		return NULL;
	VGPU_LOCK(&t->lock);
	while ((p = find(t, key)) != NULL)
		push(&list, unlinked(t, p));
	return list;
}

struct vgpu_item *vgpu_table_detach_if(struct vgpu_table *t, uint64_t arg,
				       bool (*goes)(const struct vgpu_item *, uint64_t))
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item *list = NULL;

	for (size_t i = 0; i < t->buckets; i++)
		for (struct vgpu_item **p = &t->bucket[i]; *p;) {
			if (goes(*p, arg))
				push(&list, unlinked(t, p));
			else
				p = &(*p)->next;
		}
	return list;
}

void vgpu_table_attach(struct vgpu_table *t, struct vgpu_item *list)
{
	VGPU_LOCK(&t->lock);

	for (struct vgpu_item *next; list && (t->buckets || grow(t)); list = next) {
		next = list->next;
		insert(t, list);
	}
}

void vgpu_table_drop(struct vgpu_table *t, struct vgpu_item *list,
		     void (*gone)(const struct vgpu_item *))
{
	(void)t;
	for (struct vgpu_item *item; (item = list) != NULL; free(item)) {
		list = item->next;
		if (gone)
			gone(item);
	}
}

uint64_t vgpu_table_raise(struct vgpu_table *t, uint64_t key, uint64_t size)
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item **p = find(t, key);
	uint64_t by = p && (*p)->size < size ? size - (*p)->size : 0;

	if (by)
		(*p)->size = size;
	return by;
}

void vgpu_table_sweep(struct vgpu_table *t, uint64_t arg,
		      bool (*goes)(const struct vgpu_item *, uint64_t))
{
	vgpu_table_drop(t, vgpu_table_detach_if(t, arg, goes), NULL);
}

static bool ends_with(const struct vgpu_item *item, uint64_t owner)
{
	return item->owner == owner;
}

void vgpu_table_end(struct vgpu_table *t, uint64_t owner, void (*gone)(const struct vgpu_item *))
{
	vgpu_table_drop(t, vgpu_table_detach_if(t, owner, ends_with), gone);
}

bool vgpu_table_ref(struct vgpu_table *t, uint64_t key, int by, struct vgpu_item *out)
{
	VGPU_LOCK(&t->lock);
	struct vgpu_item **p = find(t, key);

	if (!p || !(*p)->refs)
		return false;
	(*p)->refs += (unsigned)by;
	*out = **p;
	if (out->refs == 0)
		free(unlinked(t, p));
	return true;
}
