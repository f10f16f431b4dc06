/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - a map from addresses or handles to the memory behind them. */
#ifndef VGPU_BASE_TABLE_H
#define VGPU_BASE_TABLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util.h"

/* An entry of a map. */
struct vgpu_item {
	uint64_t key, size, other;
	uint64_t owner; /* what it ends with: vgpu_context_owner; 0: only by itself */
	int card;
	unsigned kind; /* in a table of several kinds */
	unsigned refs; /* 0: vgpu_table_ref does not count them */
	struct vgpu_item *next;
};
struct vgpu_table {
	pthread_mutex_t lock;
	struct vgpu_item **bucket;
	size_t buckets, count;
};
/* An empty table. In a forked child the table is empty and unlocked again: the parent pays for its
 * memory. */
#define VGPU_TABLE(name) VGPU_PRIVATE struct vgpu_table name
/* Adds an entry; false when there is no memory for it. */
bool vgpu_table_put(struct vgpu_table *t, const struct vgpu_item *item);
/* The same, unless the key has an entry: then *item becomes that entry. */
bool vgpu_table_add(struct vgpu_table *t, struct vgpu_item *item);
bool vgpu_table_get(struct vgpu_table *t, uint64_t key, struct vgpu_item *out);
bool vgpu_table_take(struct vgpu_table *t, uint64_t key, struct vgpu_item *out);
/* For a free: all entries of a key, or all that goes is true of, leave the table as a list; NULL: there
 * are none. The list goes back, or ends: then gone is called for each entry, unless it is NULL. */
struct vgpu_item *vgpu_table_detach(struct vgpu_table *t, uint64_t key);
struct vgpu_item *vgpu_table_detach_if(struct vgpu_table *t, uint64_t arg,
				       bool (*goes)(const struct vgpu_item *, uint64_t arg));
void vgpu_table_attach(struct vgpu_table *t, struct vgpu_item *list);
void vgpu_table_drop(struct vgpu_table *t, struct vgpu_item *list,
		     void (*gone)(const struct vgpu_item *));
/* Raises the size of an entry to at least size. Returns by how much; 0 also without an entry. */
uint64_t vgpu_table_raise(struct vgpu_table *t, uint64_t key, uint64_t size);
/* Adds to the reference count; *out is the entry after it, already removed
 * when the count has come to zero. False when there is no such key, or no count. */
bool vgpu_table_ref(struct vgpu_table *t, uint64_t key, int by, struct vgpu_item *out);
/* Removes the entries of an owner, and calls gone for each. */
void vgpu_table_end(struct vgpu_table *t, uint64_t owner, void (*gone)(const struct vgpu_item *));
/* Asks of each entry, with the lock held, whether it goes. */
void vgpu_table_sweep(struct vgpu_table *t, uint64_t arg,
		      bool (*goes)(const struct vgpu_item *, uint64_t arg));

#endif
