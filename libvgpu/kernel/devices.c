/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.c - see kernel.h. A program may make a device several times, once for each of its
 * clients; they have the card's number in common. Which card has which number is known once a CUDA
 * context on it was made, or by the card's UUID.
 */
#include <string.h>

#include "../job/job.h"
#include "kernel.h"

#define NO_NUMBER MAX_DEVICES

/* Devices and subdevices; card: the card's number. */
static VGPU_TABLE(devices);
static int card_of_number[MAX_DEVICES + 1]; /* + 1; 0: not known, as that of NO_NUMBER */

bool vgpu_object_goes(const struct vgpu_item *item, uint64_t freed)
{
	uint32_t client = (uint32_t)(freed >> 32), object = (uint32_t)freed;

	return item->key >> 32 == client && (object == client || object == (uint32_t)item->key ||
					     object == item->other || object == item->owner);
}

static struct vgpu_item find(uint32_t client, uint32_t object)
{
	struct vgpu_item d = {.card = NO_NUMBER};

	vgpu_table_get(&devices, vgpu_object_key(client, object), &d);
	return d;
}

/* One that has no room is not known. */
static void add(const struct vgpu_item *d)
{
	struct vgpu_item old;

	/* One of that name is gone, with its descriptor. */
	vgpu_table_take(&devices, d->key, &old);
	vgpu_table_put(&devices, d);
}

static void number_is(int number, int card)
{
	if (number >= 0 && number < MAX_DEVICES)
		__atomic_store_n(&card_of_number[number], card + 1, __ATOMIC_RELAXED);
}

/* An instance of MIG has no number. */
static void ask_cards(int fd, uint32_t client)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct rm_uuid_info info = {.device = MAX_DEVICES};

		memcpy(info.uuid, vgpu_state.grant->card[i].uuid, VGPU_UUID_LEN - 1);
		if (vgpu_rm_control(fd, client, client, CMD_UUID_INFO, &info, sizeof info) == 0)
			number_is((int)info.device, (int)i);
	}
}

void vgpu_device_made(int fd, uint32_t client, uint32_t object, uint64_t params, bool ask)
{
	struct vgpu_item d = {.key = vgpu_object_key(client, object),
			      .other = object,
			      .owner = object};

	if (!vgpu_peek(params, &d.card, sizeof d.card) || d.card < 0 || d.card >= MAX_DEVICES)
		d.card = NO_NUMBER;
	add(&d);
	if (ask && vgpu_state.ncards > 1 && d.card != NO_NUMBER &&
	    vgpu_card_below(client, object) < 0)
		ask_cards(fd, client);
}

void vgpu_subdevice_made(uint32_t client, uint32_t parent, uint32_t object)
{
	struct vgpu_item d = find(client, parent);

	d.key = vgpu_object_key(client, object);
	if (d.owner)
		add(&d);
}

bool vgpu_device_freed(uint32_t client, uint32_t object)
{
	struct vgpu_item *gone =
		vgpu_table_detach_if(&devices, vgpu_object_key(client, object), vgpu_object_goes);

	vgpu_table_drop(&devices, gone, NULL);
	return object == client || gone;
}

uint32_t vgpu_device_of(uint32_t client, uint32_t object)
{
	return (uint32_t)find(client, object).owner;
}

int vgpu_card_below(uint32_t client, uint32_t parent)
{
	if (vgpu_state.ncards == 1)
		return 0;
	return __atomic_load_n(&card_of_number[find(client, parent).card], __ATOMIC_RELAXED) - 1;
}

void vgpu_device_is(uint32_t client, uint32_t parent, int card)
{
	number_is(find(client, parent).card, card);
}
