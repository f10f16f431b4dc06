/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.c - see devices.h. A program may make a device several times, once for each of its
 * clients; they have the card's number in common. Which card has which number is known once a CUDA
 * context on it was made, or by the card's UUID.
 */
#include <pthread.h>

#include "../driver/rm_call.h"
#include "devices.h"
#include "job.h"

#define MAX_OBJECTS 256
#define NO_NUMBER MAX_DEVICES

static struct device {
	uint32_t client, object;
	uint32_t device; /* itself, or what it is a subdevice of */
	uint32_t number;
} devices[MAX_OBJECTS];
static unsigned ndevices;
static int card_of_number[MAX_DEVICES + 1]; /* + 1; 0: not known, as that of NO_NUMBER */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vgpu_devices_in_child(void)
{
	pthread_mutex_init(&lock, NULL); /* whoever held it is not here */
	ndevices = 0;
}

/* lock is held; ndevices: it is not there. */
static unsigned place_of(uint32_t client, uint32_t object)
{
	unsigned at = 0;

	while (at < ndevices && (devices[at].client != client || devices[at].object != object))
		at++;
	return at;
}

static struct device find(uint32_t client, uint32_t object)
{
	struct device d = {.number = NO_NUMBER};
	unsigned at;

	pthread_mutex_lock(&lock);
	at = place_of(client, object);
	if (at < ndevices)
		d = devices[at];
	pthread_mutex_unlock(&lock);
	return d;
}

/* One that has no room is not known. */
static void add(const struct device *d)
{
	unsigned at;

	pthread_mutex_lock(&lock);
	/* One of that name is gone, with its descriptor. */
	at = place_of(d->client, d->object);
	if (at < MAX_OBJECTS) {
		ndevices += at == ndevices;
		devices[at] = *d;
	}
	pthread_mutex_unlock(&lock);
}

static void number_is(uint32_t number, int card)
{
	if (number < MAX_DEVICES)
		__atomic_store_n(&card_of_number[number], card + 1, __ATOMIC_RELAXED);
}

/* "GPU-" or "MIG-" and 32 hexadecimal digits. */
static bool read_uuid(const char *text, uint8_t out[16])
{
	unsigned n = 0;

	for (const char *p = text + 4; *text && *p; p++) {
		unsigned digit =
			*p <= '9' ? (unsigned)(*p - '0') : (unsigned)((*p | 0x20) - 'a') + 10;

		if (*p == '-')
			continue;
		if (digit > 15 || n == 32)
			return false;
		out[n / 2] = (uint8_t)(n % 2 ? out[n / 2] | digit : digit << 4);
		n++;
	}
	return n == 32;
}

static void ask_cards(int fd, uint32_t client)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct rm_uuid_info info = {.flags = UUID_BINARY, .device = MAX_DEVICES};

		if (read_uuid(vgpu_state.grant->card[i].uuid, info.uuid) &&
		    vgpu_rm_control(fd, client, client, CMD_UUID_INFO, &info, sizeof info) == 0)
			number_is(info.device, (int)i);
	}
}

void vgpu_device_made(int fd, uint32_t client, uint32_t object, uint64_t params, bool ask)
{
	struct device d = {client, object, object, NO_NUMBER};

	if (!vgpu_peek(params, &d.number, sizeof d.number) || d.number >= MAX_DEVICES)
		d.number = NO_NUMBER;
	add(&d);
	if (ask && vgpu_state.ncards > 1 && d.number != NO_NUMBER &&
	    vgpu_card_below(client, object) < 0)
		ask_cards(fd, client);
}

void vgpu_subdevice_made(uint32_t client, uint32_t parent, uint32_t object)
{
	struct device d = find(client, parent);

	d.object = object;
	if (d.device)
		add(&d);
}

bool vgpu_device_freed(uint32_t client, uint32_t object)
{
	unsigned kept = 0;
	bool one;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < ndevices; i++) {
		const struct device *d = &devices[i];

		if (d->client != client ||
		    (object != client && d->object != object && d->device != object))
			devices[kept++] = *d;
	}
	one = object == client || kept < ndevices;
	ndevices = kept;
	pthread_mutex_unlock(&lock);
	return one;
}

uint32_t vgpu_device_of(uint32_t client, uint32_t object)
{
	return find(client, object).device;
}

int vgpu_card_below(uint32_t client, uint32_t parent)
{
	return __atomic_load_n(&card_of_number[find(client, parent).number], __ATOMIC_RELAXED) - 1;
}

void vgpu_device_is(uint32_t client, uint32_t parent, int card)
{
	number_is(find(client, parent).number, card);
}
