/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - memory that others than its allocation keep alive.
 *
 * An exported allocation lives until its handle, its descriptors and its imports are gone, and so
 * does its charge. The card counts the memory for the exporter, then for another process that has
 * imported it, mapped or not; while a descriptor alone keeps it, the card counts it for no process
 * (measured: 580, H100 and H200).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/util.h"
#include "account.h"
#include "openfiles.h"
#include "shared.h"

/* An exported descriptor, and all its copies. */
struct descriptor {
	struct vgpu_openfile file;
	struct vgpu_kept *of;
	struct descriptor *next, **link; /* of the same memory */
	struct descriptor *same;         /* of the same number: a range of several allocations */
};

struct vgpu_kept {
	uint64_t key;
	uint64_t bytes; /* charged, once the allocation is freed */
	uint64_t data;  /* hash of the bytes that it is imported by; 0: none */
	int card;
	bool allocated;
	unsigned imports;
	struct descriptor *open;
	struct vgpu_kept *next; /* freed ones */
};

static struct vgpu_table exported = VGPU_TABLE_INIT; /* key of an allocation -> vgpu_kept */
static struct vgpu_table by_data = VGPU_TABLE_INIT;  /* hash -> vgpu_kept */
static struct descriptor **number;                   /* by number */
static int numbers;
static struct vgpu_kept *freed; /* allocations, that are still kept */
/* Of all of these. Inside it only the locks of the tables here are taken. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

static struct vgpu_kept *kept_of(const struct vgpu_item *item)
{
	return (struct vgpu_kept *)(uintptr_t)item->other;
}

static void forget_data(struct vgpu_kept *k)
{
	struct vgpu_item item;

	if (k->data)
		vgpu_table_take(&by_data, k->data, &item);
	k->data = 0;
}

/* Ends the entry if there is nothing more to know of it. */
static void end_if_over(struct vgpu_kept *k)
{
	struct vgpu_kept **link = &freed;
	struct vgpu_item item;

	if (k->open || k->imports || (k->allocated && k->data))
		return;
	if (k->allocated) {
		vgpu_table_take(&exported, k->key, &item);
	} else {
		while (*link && *link != k)
			link = &(*link)->next;
		if (*link)
			__atomic_store_n(link, k->next, __ATOMIC_RELAXED);
		vgpu_release(k->card, k->bytes);
	}
	forget_data(k);
	free(k);
}

/* Its number belongs to another file now. */
static void lose_number(struct descriptor *d)
{
	struct descriptor **same;

	if (d->file.fd < 0)
		return;
	for (same = &number[d->file.fd]; *same != d;)
		same = &(*same)->same;
	*same = d->same;
	d->file.fd = -1;
}

static void closed(struct descriptor *d)
{
	lose_number(d);
	*d->link = d->next;
	if (d->next)
		d->next->link = d->link;
	vgpu_openfile_unfollow(&d->file);
	free(d);
}

static void drop_closed(struct vgpu_kept *k)
{
	for (struct descriptor *d = k->open, *next; d; d = next) {
		next = d->next;
		if (!vgpu_openfile_exists(&d->file))
			closed(d);
	}
}

void vgpu_shared_reused(int fd)
{
	pthread_mutex_lock(&shared_lock);
	vgpu_openfiles_begin();
	while (fd >= 0 && fd < numbers && number[fd]) {
		struct vgpu_kept *k = number[fd]->of;

		lose_number(number[fd]);
		drop_closed(k);
		end_if_over(k);
	}
	pthread_mutex_unlock(&shared_lock);
}

/* Grows the array of descriptors so that it has this number. */
static bool room_for(int fd)
{
	int want = numbers ? numbers : 64;
	struct descriptor **more;

	if (fd < numbers)
		return true;
	while (want <= fd)
		want *= 2;
	more = realloc(number, (size_t)want * sizeof *number);
	if (!more)
		return false;
	memset(more + numbers, 0, (size_t)(want - numbers) * sizeof *number);
	number = more;
	numbers = want;
	return true;
}

static bool note(struct vgpu_kept *k, int fd)
{
	struct descriptor *d = k->open;

	if (d && d->file.fd == fd && vgpu_openfile_has_number(&d->file))
		return true;                  /* of another mapping of the same memory */
	if (fd < 0 || fcntl(fd, F_GETFD) < 0) /* it is closed: it keeps nothing */
		return true;
	d = room_for(fd) ? calloc(1, sizeof *d) : NULL;
	if (!d || !vgpu_openfile_follow(&d->file, fd)) {
		free(d);
		return false;
	}
	d->of = k;
	d->next = k->open;
	d->link = &k->open;
	d->same = number[fd];
	if (k->open)
		k->open->link = &d->next;
	k->open = d;
	number[fd] = d;
	return true;
}

static struct vgpu_kept *entry_of(uint64_t key)
{
	struct vgpu_item item = {.key = key};
	struct vgpu_kept *k;

	if (vgpu_table_get(&exported, key, &item))
		return kept_of(&item);
	k = calloc(1, sizeof *k);
	if (!k)
		return NULL;
	*k = (struct vgpu_kept){.key = key, .allocated = true};
	item.other = (uintptr_t)k;
	if (vgpu_table_put(&exported, &item))
		return k;
	free(k);
	return NULL;
}

bool vgpu_shared_note(uint64_t key, int fd)
{
	struct vgpu_kept *k;
	bool ok;

	pthread_mutex_lock(&shared_lock);
	k = entry_of(key);
	ok = k && note(k, fd);
	if (k)
		end_if_over(k);
	pthread_mutex_unlock(&shared_lock);
	return ok;
}

bool vgpu_shared_note_kept(struct vgpu_kept *k, int fd)
{
	bool ok;

	pthread_mutex_lock(&shared_lock);
	ok = note(k, fd);
	pthread_mutex_unlock(&shared_lock);
	return ok;
}

static uint64_t hash_of(const void *data)
{
	uint64_t hash = 1, word;

	for (size_t i = 0; i < VGPU_EXPORT_DATA; i += sizeof word) {
		memcpy(&word, (const char *)data + i, sizeof word);
		hash = vgpu_mix(hash, word);
	}
	return hash ? hash : 1;
}

bool vgpu_shared_note_data(uint64_t key, const void *data)
{
	struct vgpu_item item = {.key = hash_of(data)};
	struct vgpu_kept *k;
	bool ok = true;

	pthread_mutex_lock(&shared_lock);
	k = entry_of(key);
	if (k && k->data != item.key) {
		forget_data(k);
		item.other = (uintptr_t)k;
		ok = vgpu_table_put(&by_data, &item);
		k->data = ok ? item.key : 0;
		end_if_over(k);
	}
	pthread_mutex_unlock(&shared_lock);
	return k && ok;
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

/* 0 of KCMP_FILE: two numbers of one open file. A kernel without kcmp finds none. */
static bool same_file(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), 0, a, b) == 0;
}

static const struct descriptor *export_of(int fd)
{
	const struct descriptor *d = fd >= 0 && fd < numbers ? number[fd] : NULL;

	if (d && vgpu_openfile_has_number(&d->file))
		return d;
	for (int i = 0; i < numbers; i++)
		if (number[i] && same_file(fd, i) && vgpu_openfile_has_number(&number[i]->file))
			return number[i];
	return NULL;
}

struct vgpu_kept *vgpu_shared_import(int fd)
{
	const struct descriptor *d;

	pthread_mutex_lock(&shared_lock);
	d = export_of(fd);
	if (d)
		d->of->imports++;
	pthread_mutex_unlock(&shared_lock);
	return d ? d->of : NULL;
}

struct vgpu_kept *vgpu_shared_import_data(const void *data)
{
	struct vgpu_kept *k = NULL;
	struct vgpu_item item;

	pthread_mutex_lock(&shared_lock);
	if (vgpu_table_get(&by_data, hash_of(data), &item)) {
		k = kept_of(&item);
		k->imports++;
	}
	pthread_mutex_unlock(&shared_lock);
	return k;
}

void vgpu_shared_import_again(struct vgpu_kept *k)
{
	pthread_mutex_lock(&shared_lock);
	k->imports++;
	pthread_mutex_unlock(&shared_lock);
}

void vgpu_shared_unimport(struct vgpu_kept *k)
{
	pthread_mutex_lock(&shared_lock);
	k->imports--;
	vgpu_openfiles_begin();
	drop_closed(k);
	end_if_over(k);
	pthread_mutex_unlock(&shared_lock);
}

void vgpu_shared_freed(uint64_t key, int card, uint64_t bytes)
{
	struct vgpu_item item;
	struct vgpu_kept *k;

	if (!__atomic_load_n(&exported.count, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&shared_lock);
	if (vgpu_table_take(&exported, key, &item)) {
		k = kept_of(&item);
		vgpu_openfiles_begin();
		drop_closed(k);
		forget_data(k);
		if (k->open || k->imports) {
			vgpu_charge_forced(card, bytes);
			*k = (struct vgpu_kept){.bytes = bytes,
						.card = card,
						.imports = k->imports,
						.open = k->open,
						.next = freed};
			__atomic_store_n(&freed, k, __ATOMIC_RELAXED);
		} else {
			free(k);
		}
	}
	pthread_mutex_unlock(&shared_lock);
}

void vgpu_shared_release(uint64_t key, int card, uint64_t bytes)
{
	vgpu_shared_freed(key, card, bytes);
	vgpu_release(card, bytes);
}

void vgpu_shared_settle(void)
{
	if (!__atomic_load_n(&freed, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&shared_lock);
	vgpu_openfiles_begin();
	for (struct vgpu_kept *k = freed, *next; k; k = next) {
		next = k->next;
		drop_closed(k);
		end_if_over(k);
	}
	pthread_mutex_unlock(&shared_lock);
}

uint64_t vgpu_shared_uncounted(int card)
{
	uint64_t sum = 0;

	pthread_mutex_lock(&shared_lock);
	for (struct vgpu_kept *k = freed; k; k = k->next)
		if (k->card == card && !k->imports)
			sum += k->bytes;
	pthread_mutex_unlock(&shared_lock);
	return sum;
}

void vgpu_shared_in_child(void)
{
	/* The parent pays for its exports. */
	pthread_mutex_init(&shared_lock, NULL);
	number = NULL;
	numbers = 0;
	freed = NULL;
	vgpu_openfiles_in_child();
}
