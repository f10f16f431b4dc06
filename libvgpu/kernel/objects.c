/* SPDX-License-Identifier: Apache-2.0 */
/*
 * objects.c - see kernel.h. Bytes whose card is not known must fit on every card of the job, and
 * count on all. A dup of an object is not followed: it costs nothing, and keeps the memory when the
 * object goes, which then the comparison with the card's own count charges.
 */
#include <errno.h>

#include "../job/job.h"
#include "../memory/account.h"
#include "../memory/shared.h"
#include "kernel.h"

static VGPU_TABLE(objects);

/* Bytes count on one card, or on all if the card is unknown. */
#define EACH_CARD(i, card)                               \
	for (int i = 0; i < (int)vgpu_state.ncards; i++) \
		if ((card) < 0 || (card) == i)

static void item_gone(const struct vgpu_item *item)
{
	if (item->card >= 0)
		vgpu_shared_release(item->key, item->card, item->size);
	else
		EACH_CARD (i, -1)
			vgpu_release(i, item->size);
}

static int refuse(int card, uint64_t bytes)
{
	vgpu_oom(card, bytes);
	vgpu_mem_end();
	return -ENOMEM;
}

int vgpu_object_take(struct vgpu_object *asked)
{
	int card = asked->card = vgpu_card_below(asked->client, asked->parent);

	vgpu_mem_begin();
	/* No card: the process has no part in its job. */
	if (!vgpu_state.ncards || LOAD(&objects.count) >= VGPU_MAX_MEMORY_OBJECTS)
		return refuse(card < 0 ? 0 : card, asked->bytes);
	vgpu_shared_settle();
	EACH_CARD (i, card) {
		if (vgpu_charge(i, asked->bytes) == 0)
			continue;
		for (int k = card < 0 ? 0 : card; k < i; k++)
			vgpu_release(k, asked->bytes);
		return refuse(i, asked->bytes);
	}
	return 0;
}

void vgpu_object_taken(const struct vgpu_object *asked, const struct vgpu_object *made)
{
	uint64_t bytes = made ? made->bytes : 0;
	struct vgpu_item item;
	int card = asked->card;

	EACH_CARD (i, card)
		vgpu_charge_moves(i, asked->bytes, bytes);
	if (made && bytes) {
		item = (struct vgpu_item){.key = vgpu_object_key(made->client, made->object),
					  .size = bytes,
					  .other = made->parent,
					  .owner = vgpu_device_of(made->client, made->parent),
					  .card = card};
		/* One of that name is gone, with its descriptor. */
		vgpu_table_drop(&objects, vgpu_table_detach(&objects, item.key), item_gone);
		/* Without room for its entry it stays charged until the process ends. */
		vgpu_table_put(&objects, &item);
	}
	vgpu_mem_end();
}

struct vgpu_item *vgpu_object_freeing(uint32_t client, uint32_t object)
{
	return vgpu_freeing(&objects, vgpu_object_key(client, object));
}

void vgpu_object_freed(struct vgpu_item *list, bool ok)
{
	vgpu_freed(&objects, list, ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, item_gone);
}

void vgpu_objects_below_freed(uint32_t client, uint32_t object)
{
	vgpu_table_drop(&objects,
			vgpu_table_detach_if(&objects, vgpu_object_key(client, object),
					     vgpu_object_goes),
			item_gone);
}

void vgpu_objects_exported(uint32_t client, const uint32_t *object, unsigned n, int fd)
{
	struct vgpu_item item;

	/* Memory that only a descriptor keeps counts for no process. So memory that cannot be noted stays
	 * charged until the process ends. */
	for (unsigned i = 0; i < n; i++)
		if (vgpu_table_get(&objects, vgpu_object_key(client, object[i]), &item) &&
		    (item.card < 0 || !vgpu_shared_note(item.key, fd)))
			vgpu_table_take(&objects, item.key, &item);
}

uint32_t vgpu_object_told(uint32_t client, uint32_t parent, uint32_t index, uint32_t kib)
{
	int card = vgpu_card_below(client, parent);
	bool left = index == FB_LARGEST_FREE || index == FB_HEAP_FREE;

	if (!left && index != FB_RAM_SIZE && index != FB_TOTAL_RAM_SIZE && index != FB_HEAP_SIZE &&
	    index != FB_USABLE_RAM_SIZE)
		return kib;
	EACH_CARD (i, card) {
		uint64_t limit = vgpu_limit(i), used = left ? vgpu_mem_used(i) : 0;
		uint64_t told = limit > used ? limit - used : 0;

		if (limit && told >> 10 < kib)
			kib = (uint32_t)(told >> 10);
	}
	return kib;
}
