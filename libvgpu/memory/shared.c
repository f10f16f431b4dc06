/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - memory that others than its allocation keep alive.
 *
 * An exported allocation lives until its handle, its descriptors and its imports are gone, and so
 * does its charge. The card counts the memory for the exporter, then for another process that has
 * imported it, mapped or not. While only a descriptor keeps the memory, the card counts it for no
 * process (measured: 580, H100 and H200).
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "account.h"
#include "openfiles.h"
#include "shared.h"

/* An exported descriptor, and all its copies. */
struct descriptor {
	uint64_t file;
	struct descriptor *next; /* of the same memory */
};

struct vgpu_kept {
	uint64_t bytes; /* charged, once the allocation is freed */
	uint64_t data;  /* hash of the bytes that it is imported by; 0: none */
	int card;
	unsigned imports;
	struct descriptor *open;
	struct vgpu_kept *next; /* freed ones */
};

static VGPU_TABLE(exported);    /* key of an allocation -> vgpu_kept */
static VGPU_TABLE(by_data);     /* hash -> vgpu_kept */
static struct vgpu_kept *freed; /* allocations, that are still kept */
/* Of all of these. Inside it only the locks of the tables here are taken. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t *locked_shared(void)
{
	vgpu_locked(&shared_lock);
	vgpu_openfiles_begin();
	return &shared_lock;
}

static bool is_kept(struct vgpu_kept *k)
{
	struct descriptor *d;

	while ((d = k->open) && !vgpu_openfile_exists(d->file)) {
		k->open = d->next;
		free(d);
	}
	return k->imports || k->open;
}

/* The lock is taken. */
static void settle(void)
{
	for (struct vgpu_kept **link = &freed, *k; (k = *link);) {
		if (is_kept(k)) {
			link = &k->next;
			continue;
		}
		STORE(link, k->next);
		vgpu_release(k->card, k->bytes);
		free(k);
	}
}

static bool note(struct vgpu_kept *k, int fd)
{
	struct descriptor *d = malloc(sizeof *d);
	int r = d ? vgpu_openfile_follow(fd, (uintptr_t)k, &d->file) : -ENOMEM;

	if (r < 0) {
		free(d);
		return r == -EBADF; /* a closed one keeps nothing */
	}
	is_kept(k);
	d->next = k->open;
	k->open = d;
	if (r)
		settle();
	return true;
}

static struct vgpu_kept *kept_of(const struct vgpu_item *item)
{
	return (struct vgpu_kept *)(uintptr_t)item->other;
}

static struct vgpu_kept *entry_of(uint64_t key)
{
	struct vgpu_item item = {.key = key};

	if (vgpu_table_get(&exported, key, &item))
		return kept_of(&item);
	struct vgpu_kept *k = calloc(1, sizeof *k);
	item.other = (uintptr_t)k;
	if (k && vgpu_table_put(&exported, &item))
		return k;
	free(k);
	return NULL;
}

bool vgpu_shared_note(uint64_t key, int fd)
{
	VGPU_HOLD(locked_shared());
	struct vgpu_kept *k = entry_of(key);

	return k && note(k, fd);
}

bool vgpu_shared_note_kept(struct vgpu_kept *k, int fd)
{
	VGPU_HOLD(locked_shared());

	return note(k, fd);
}

static uint64_t hash_of(const void *data)
{
	uint64_t hash = 1, word;

	for (size_t i = 0; i < VGPU_EXPORT_DATA; i += sizeof word) {
		memcpy(&word, (const char *)data + i, sizeof word);
		hash = vgpu_mix(hash, word);
	}
	return hash;
}

static void data_is(struct vgpu_kept *k, uint64_t hash)
{
	struct vgpu_item item = {.key = hash, .other = (uintptr_t)k}, old;

	if (k->data)
		vgpu_table_take(&by_data, k->data, &old);
	k->data = hash && vgpu_table_put(&by_data, &item) ? hash : 0;
}

bool vgpu_shared_note_data(uint64_t key, const void *data)
{
	VGPU_HOLD(locked_shared());
	uint64_t hash = hash_of(data);
	struct vgpu_kept *k = entry_of(key);

	if (k && k->data != hash)
		data_is(k, hash);
	return k && k->data;
}

bool vgpu_shared_range(const struct vgpu_item *item, uint64_t range)
{
	struct vgpu_range *r = (struct vgpu_range *)(uintptr_t)range;

	if (vgpu_in_range(item, r) && !vgpu_shared_note(item->key, r->fd))
		r->failed = true;
	return false;
}

bool vgpu_shared_one(struct vgpu_table *t, struct vgpu_range *r)
{
	struct vgpu_item item;

	if (!vgpu_table_get(t, r->base, &item) || item.key > r->begin ||
	    item.key + item.size < r->end)
		return false;
	vgpu_shared_range(&item, (uintptr_t)r);
	return true;
}

struct vgpu_kept *vgpu_shared_import(int fd)
{
	VGPU_HOLD(locked_shared());
	struct vgpu_kept *k = (struct vgpu_kept *)(uintptr_t)vgpu_openfile_find(fd);

	if (k)
		k->imports++;
	return k;
}

struct vgpu_kept *vgpu_shared_import_data(const void *data)
{
	VGPU_HOLD(locked_shared());
	struct vgpu_item item;

	if (!vgpu_table_get(&by_data, hash_of(data), &item))
		return NULL;
	kept_of(&item)->imports++;
	return kept_of(&item);
}

void vgpu_shared_import_again(struct vgpu_kept *k)
{
	VGPU_HOLD(locked_shared());

	k->imports++;
}

void vgpu_shared_unimport(struct vgpu_kept *k)
{
	VGPU_HOLD(locked_shared());

	k->imports--;
	settle();
}

void vgpu_shared_freed(uint64_t key, int card, uint64_t bytes)
{
	struct vgpu_item item;

	if (!LOAD(&exported.count))
		return;
	VGPU_HOLD(locked_shared());
	if (!vgpu_table_take(&exported, key, &item))
		return;
	struct vgpu_kept *k = kept_of(&item);
	data_is(k, 0);
	if (!is_kept(k)) {
		free(k);
		return;
	}
	vgpu_charge_forced(card, bytes);
	k->card = card;
	k->bytes = bytes;
	k->next = freed;
	STORE(&freed, k);
}

void vgpu_shared_release(uint64_t key, int card, uint64_t bytes)
{
	vgpu_shared_freed(key, card, bytes);
	vgpu_release(card, bytes);
}

void vgpu_shared_settle(void)
{
	if (!LOAD(&freed))
		return;
	VGPU_HOLD(locked_shared());
	settle();
}

uint64_t vgpu_shared_uncounted(int card)
{
	VGPU_HOLD(locked_shared());
	uint64_t sum = 0;

	for (struct vgpu_kept *k = freed; k; k = k->next)
		if (k->card == card && !k->imports)
			sum += k->bytes;
	return sum;
}

void vgpu_shared_in_child(void)
{
	/* The parent pays for its exports. */
	pthread_mutex_init(&shared_lock, NULL);
	freed = NULL;
	vgpu_openfiles_in_child();
}
