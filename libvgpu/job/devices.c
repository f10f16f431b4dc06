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
#define NO_NUMBER (-1)

static struct device {
	uint32_t client, object;
	uint32_t device; /* itself, or what it is a subdevice of */
	int number;
} devices[MAX_OBJECTS];
static unsigned ndevices;
static int card_of_number[MAX_DEVICES]; /* + 1; 0: not known */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vgpu_devices_in_child(void)
{
	pthread_mutex_init(&lock, NULL); /* whoever held it is not here */
	ndevices = 0;
}

static const struct device *find(uint32_t client, uint32_t object)
{
	for (unsigned i = 0; i < ndevices; i++)
		if (devices[i].client == client && devices[i].object == object)
			return &devices[i];
	return NULL;
}

/* lock is held. One that has no room is not known. */
static void add(const struct device *d)
{
	unsigned at = 0;

	/* One of that name is gone, with its descriptor. */
	while (at < ndevices &&
	       (devices[at].client != d->client || devices[at].object != d->object))
		at++;
	if (at == MAX_OBJECTS)
		return;
	ndevices += at == ndevices;
	devices[at] = *d;
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

		if (!read_uuid(vgpu_state.grant->card[i].uuid, info.uuid) ||
		    vgpu_rm_control(fd, client, client, CMD_UUID_INFO, &info, sizeof info) != 0 ||
		    info.device >= MAX_DEVICES)
			continue;
		pthread_mutex_lock(&lock);
		card_of_number[info.device] = (int)i + 1;
		pthread_mutex_unlock(&lock);
	}
}

void vgpu_device_made(int fd, uint32_t client, uint32_t object, uint64_t params, bool ask)
{
	uint32_t number = MAX_DEVICES;
	struct device d = {client, object, object, NO_NUMBER};

	if (vgpu_peek(params, &number, sizeof number) && number < MAX_DEVICES)
		d.number = (int)number;
	pthread_mutex_lock(&lock);
	add(&d);
	ask = ask && vgpu_state.ncards > 1 && d.number != NO_NUMBER && !card_of_number[d.number];
	pthread_mutex_unlock(&lock);
	if (ask)
		ask_cards(fd, client);
}

void vgpu_subdevice_made(uint32_t client, uint32_t parent, uint32_t object)
{
	const struct device *of;
	struct device d;

	pthread_mutex_lock(&lock);
	of = find(client, parent);
	if (of) {
		d = *of;
		d.object = object;
		add(&d);
	}
	pthread_mutex_unlock(&lock);
}

bool vgpu_device_freed(uint32_t client, uint32_t object)
{
	unsigned kept = 0;
	bool one;

	pthread_mutex_lock(&lock);
	one = object == client || find(client, object);
	for (unsigned i = 0; one && i < ndevices; i++) {
		const struct device *d = &devices[i];

		if (d->client != client ||
		    (object != client && d->object != object && d->device != object))
			devices[kept++] = *d;
	}
	if (one)
		ndevices = kept;
	pthread_mutex_unlock(&lock);
	return one;
}

uint32_t vgpu_device_of(uint32_t client, uint32_t object)
{
	const struct device *d;
	uint32_t device;

	pthread_mutex_lock(&lock);
	d = find(client, object);
	device = d ? d->device : 0;
	pthread_mutex_unlock(&lock);
	return device;
}

int vgpu_card_below(uint32_t client, uint32_t parent)
{
	const struct device *d;
	int card;

	pthread_mutex_lock(&lock);
	d = find(client, parent);
	card = d && d->number != NO_NUMBER ? card_of_number[d->number] - 1 : -1;
	pthread_mutex_unlock(&lock);
	return card;
}

void vgpu_device_is(uint32_t client, uint32_t parent, int card)
{
	const struct device *d;

	pthread_mutex_lock(&lock);
	d = find(client, parent);
	if (d && d->number != NO_NUMBER)
		card_of_number[d->number] = card + 1;
	pthread_mutex_unlock(&lock);
}
