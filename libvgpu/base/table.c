/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - process-local hash table of what addresses and handles hold. The
 * lock is held for a few instructions, never across a driver call.
 */
#include <stdlib.h>

#include "table.h"
#include "util.h"

#define FIRST_BUCKETS 256u
#define ITEMS_AT_ONCE 64u

/* All tables that were ever used. */
static struct vgpu_table *tables[64];

static void add_to_list(struct vgpu_table *t)
{
	for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++) {
		struct vgpu_table *there = NULL;

		if (__atomic_compare_exchange_n(&tables[i], &there, t, false, __ATOMIC_SEQ_CST,
						__ATOMIC_SEQ_CST) ||
		    there == t)
			break;
	}
	__atomic_store_n(&t->listed, true, __ATOMIC_RELEASE);
}

/* A forked child finds each table in the list whose lock a thread of the parent has. */
static void lock(struct vgpu_table *t)
{
	if (!__atomic_load_n(&t->listed, __ATOMIC_ACQUIRE))
		add_to_list(t);
	pthread_mutex_lock(&t->lock);
}

void vgpu_tables_in_child(void)
{
	/* A thread of the parent may have been at one: what is in it is not freed. Nothing
	 * of what the parent holds is the child's. */
	for (unsigned i = 0; i < sizeof tables / sizeof *tables && tables[i]; i++) {
		struct vgpu_table *t = tables[i];

		pthread_mutex_init(&t->lock, NULL);
		t->bucket = NULL;
		t->spare = NULL;
		t->buckets = t->count = 0;
	}
}

static size_t bucket_of(const struct vgpu_table *t, uint64_t key)
{
	/* Addresses are aligned: mix before taking the low bits. */
	key ^= key >> 31;
	key *= 0x9e3779b97f4a7c15ull;
	return (key >> 32) & (t->buckets - 1);
}

/* The lock is taken, and there are buckets. */
static void insert(struct vgpu_table *t, struct vgpu_item *item)
{
	struct vgpu_item **bucket = &t->bucket[bucket_of(t, item->key)];

	item->next = *bucket;
	*bucket = item;
	__atomic_store_n(&t->count, t->count + 1, __ATOMIC_RELAXED);
}

/* Takes an entry out of the table. */
static struct vgpu_item *unlinked(struct vgpu_table *t, struct vgpu_item **p)
{
	struct vgpu_item *item = *p;

	*p = item->next;
	__atomic_store_n(&t->count, t->count - 1, __ATOMIC_RELAXED);
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

static struct vgpu_item **lock_and_find(struct vgpu_table *t, uint64_t key)
{
	lock(t);
	return find(t, key);
}

/* Entries come and go with every allocation: they are kept for the next one. */
static void spare(struct vgpu_table *t, struct vgpu_item *item)
{
	item->next = t->spare;
	t->spare = item;
}

static struct vgpu_item *new_item(struct vgpu_table *t)
{
	struct vgpu_item *item = t->spare;

	if (!item) {
		item = calloc(ITEMS_AT_ONCE, sizeof *item);
		for (unsigned i = 1; item && i < ITEMS_AT_ONCE; i++)
			spare(t, &item[i]);
	} else {
		t->spare = item->next;
	}
	return item;
}

/* The lock is taken. */
static bool put(struct vgpu_table *t, const struct vgpu_item *item)
{
	struct vgpu_item *copy;

	if (t->count >= t->buckets && !grow(t))
		return false;
	copy = new_item(t);
	if (!copy)
		return false;
	*copy = *item;
	insert(t, copy);
	return true;
}

bool vgpu_table_put(struct vgpu_table *t, const struct vgpu_item *item)
{
	bool fits;

	lock(t);
	fits = put(t, item);
	pthread_mutex_unlock(&t->lock);
	return fits;
}

bool vgpu_table_add(struct vgpu_table *t, struct vgpu_item *item)
{
	struct vgpu_item **p = lock_and_find(t, item->key);
	bool there = p || put(t, item);

	if (p)
		*item = **p;
	pthread_mutex_unlock(&t->lock);
	return there;
}

bool vgpu_table_get(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	struct vgpu_item **p = lock_and_find(t, key);

	if (p)
		*out = **p;
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}

bool vgpu_table_take(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	struct vgpu_item **p = lock_and_find(t, key);

	if (p) {
		*out = **p;
		spare(t, unlinked(t, p));
	}
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}

static void to_list(struct vgpu_table *t, struct vgpu_item **p, struct vgpu_item **list)
{
	struct vgpu_item *item = unlinked(t, p);

	item->next = *list;
	*list = item;
}

struct vgpu_item *vgpu_table_detach(struct vgpu_table *t, uint64_t key)
{
	struct vgpu_item *list = NULL, **p;

	if (!__atomic_load_n(&t->count, __ATOMIC_RELAXED))
		return NULL;
	lock(t);
	while ((p = find(t, key)) != NULL)
		to_list(t, p, &list);
	pthread_mutex_unlock(&t->lock);
	return list;
}

struct vgpu_item *vgpu_table_detach_if(struct vgpu_table *t, uint64_t arg,
				       bool (*goes)(const struct vgpu_item *, uint64_t))
{
	struct vgpu_item *list = NULL;

	lock(t);
	for (size_t i = 0; i < t->buckets; i++)
		for (struct vgpu_item **p = &t->bucket[i]; *p;) {
			if (goes(*p, arg))
				to_list(t, p, &list);
			else
				p = &(*p)->next;
		}
	pthread_mutex_unlock(&t->lock);
	return list;
}

void vgpu_table_attach(struct vgpu_table *t, struct vgpu_item *list)
{
	lock(t);
	for (struct vgpu_item *next; list && (t->buckets || grow(t)); list = next) {
		next = list->next;
		insert(t, list);
	}
	pthread_mutex_unlock(&t->lock);
}

void vgpu_table_drop(struct vgpu_table *t, struct vgpu_item *list,
		     void (*gone)(const struct vgpu_item *))
{
	for (struct vgpu_item *item = list; gone && item; item = item->next)
		gone(item);
	if (!list)
		return;
	lock(t);
	for (struct vgpu_item *next; list; list = next) {
		next = list->next;
		spare(t, list);
	}
	pthread_mutex_unlock(&t->lock);
}

uint64_t vgpu_table_raise(struct vgpu_table *t, uint64_t key, uint64_t size)
{
	struct vgpu_item **p = lock_and_find(t, key);
	uint64_t by = 0;

	if (p && (*p)->size < size) {
		by = size - (*p)->size;
		(*p)->size = size;
	}
	pthread_mutex_unlock(&t->lock);
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
	struct vgpu_item **p = lock_and_find(t, key);

	if (p && !(*p)->refs)
		p = NULL;
	if (p) {
		(*p)->refs += (unsigned)by;
		*out = **p;
		if ((*p)->refs == 0)
			spare(t, unlinked(t, p));
	}
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}
