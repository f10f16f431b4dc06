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

static void grow(struct vgpu_table *t)
{
	size_t wanted = t->buckets ? t->buckets * 2 : FIRST_BUCKETS, old = t->buckets;
	struct vgpu_item **bucket = calloc(wanted, sizeof *bucket), **from = t->bucket;

	if (!bucket)
		return; /* longer chains, no harm */
	t->bucket = bucket;
	t->buckets = wanted;
	for (size_t i = 0; i < old; i++) {
		while (from[i]) {
			struct vgpu_item *item = from[i];
			size_t to = bucket_of(t, item->key);

			from[i] = item->next;
			item->next = bucket[to];
			bucket[to] = item;
		}
	}
	free(from);
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

static void unlink_item(struct vgpu_table *t, struct vgpu_item **p, struct vgpu_item *out)
{
	struct vgpu_item *item = *p;

	if (out)
		*out = *item;
	*p = item->next;
	__atomic_store_n(&t->count, t->count - 1, __ATOMIC_RELAXED);
	item->next = t->spare;
	t->spare = item;
}

/* Entries come and go with every allocation: they are kept for the next one. */
static struct vgpu_item *new_item(struct vgpu_table *t)
{
	struct vgpu_item *item = t->spare;

	if (!item) {
		item = calloc(ITEMS_AT_ONCE, sizeof *item);
		if (!item)
			return NULL;
		for (unsigned i = 0; i + 1 < ITEMS_AT_ONCE; i++)
			item[i].next = &item[i + 1];
	}
	t->spare = item->next;
	return item;
}

/* The lock is taken. */
static bool put(struct vgpu_table *t, const struct vgpu_item *item)
{
	struct vgpu_item *copy = NULL, **bucket;

	if (t->count >= t->buckets)
		grow(t);
	if (t->buckets)
		copy = new_item(t);
	if (copy) {
		*copy = *item;
		bucket = &t->bucket[bucket_of(t, copy->key)];
		copy->next = *bucket;
		*bucket = copy;
		__atomic_store_n(&t->count, t->count + 1, __ATOMIC_RELAXED);
	}
	return copy != NULL;
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
	struct vgpu_item **p;
	bool there;

	lock(t);
	p = find(t, item->key);
	there = p != NULL;
	if (there)
		*item = **p;
	else
		there = put(t, item);
	pthread_mutex_unlock(&t->lock);
	return there;
}

bool vgpu_table_get(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	struct vgpu_item **p;

	lock(t);
	p = find(t, key);
	if (p)
		*out = **p;
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}

bool vgpu_table_take(struct vgpu_table *t, uint64_t key, struct vgpu_item *out)
{
	struct vgpu_item **p;

	lock(t);
	p = find(t, key);
	if (p)
		unlink_item(t, p, out);
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}

/* Takes an entry out of the table and puts it in front of the list. */
static void to_list(struct vgpu_table *t, struct vgpu_item **p, struct vgpu_item **list)
{
	struct vgpu_item *item = *p;

	*p = item->next;
	__atomic_store_n(&t->count, t->count - 1, __ATOMIC_RELAXED);
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
	if (!t->buckets)
		grow(t);
	for (struct vgpu_item *item = list, *next; item && t->buckets; item = next) {
		struct vgpu_item **bucket = &t->bucket[bucket_of(t, item->key)];

		next = item->next;
		item->next = *bucket;
		*bucket = item;
		__atomic_store_n(&t->count, t->count + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&t->lock);
}

void vgpu_table_drop(struct vgpu_table *t, struct vgpu_item *list,
		     void (*gone)(const struct vgpu_item *))
{
	struct vgpu_item *last = list;

	if (!list)
		return;
	for (struct vgpu_item *item = list; item; item = item->next) {
		gone(item);
		last = item;
	}
	lock(t);
	last->next = t->spare;
	t->spare = list;
	pthread_mutex_unlock(&t->lock);
}

uint64_t vgpu_table_raise(struct vgpu_table *t, uint64_t key, uint64_t size)
{
	struct vgpu_item **p;
	uint64_t by = 0;

	lock(t);
	p = find(t, key);
	if (p && (*p)->size < size) {
		by = size - (*p)->size;
		(*p)->size = size;
	}
	pthread_mutex_unlock(&t->lock);
	return by;
}

void vgpu_table_sweep(struct vgpu_table *t, uint64_t owner,
		      bool (*goes)(const struct vgpu_item *, uint64_t))
{
	lock(t);
	for (size_t i = 0; i < t->buckets; i++)
		for (struct vgpu_item **p = &t->bucket[i]; *p;) {
			if (goes(*p, owner))
				unlink_item(t, p, NULL);
			else
				p = &(*p)->next;
		}
	pthread_mutex_unlock(&t->lock);
}

void vgpu_table_end(struct vgpu_table *t, uint64_t owner, void (*gone)(const struct vgpu_item *))
{
	lock(t);
	for (size_t i = 0; i < t->buckets; i++)
		for (struct vgpu_item **p = &t->bucket[i]; *p;) {
			if ((*p)->owner == owner) {
				gone(*p);
				unlink_item(t, p, NULL);
			} else {
				p = &(*p)->next;
			}
		}
	pthread_mutex_unlock(&t->lock);
}

bool vgpu_table_ref(struct vgpu_table *t, uint64_t key, int by, struct vgpu_item *out)
{
	struct vgpu_item **p;

	lock(t);
	p = find(t, key);
	if (p) {
		(*p)->refs += (unsigned)by;
		*out = **p;
		if ((*p)->refs == 0)
			unlink_item(t, p, NULL);
	}
	pthread_mutex_unlock(&t->lock);
	return p != NULL;
}
