/* SPDX-License-Identifier: Apache-2.0 */
/* cards.c - see cards.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/log.h"
#include "../driver/real.h"
#include "cards.h"
#include "env.h"
#include "job.h"

#define MAX_DEVICES 64
#define UNKNOWN_CARD (-2)

int vgpu_only_card = -1;

static signed char card_of_device[MAX_DEVICES];
static bool env_told; /* CUDA has told the UUIDs that the limits of the environment are for */
static VGPU_PRIVATE pthread_mutex_t env_lock = PTHREAD_MUTEX_INITIALIZER;

/* CUDA_VISIBLE_DEVICES and CUDA_MPS_PIPE_DIRECTORY; NULL: not set. */
static const char *visible, *pipes;

/* A copy: the program may change its environment while other threads run. */
void vgpu_cards_settings(void)
{
	const char *value = getenv("CUDA_VISIBLE_DEVICES");

	memset(card_of_device, UNKNOWN_CARD, sizeof card_of_device);
	visible = value ? strdup(value) : NULL;
}

void vgpu_cards_init(void)
{
	const char *value = getenv("CUDA_MPS_PIPE_DIRECTORY");

	if (value && !LOAD(&pipes))
		STORE(&pipes, strdup(value));
}

static int card_of_uuid(const char *uuid)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		/* without "GPU-" or "MIG-", which CUDA does not tell apart */
		if (strncmp(vgpu_state.grant->card[i].uuid + 4, uuid + 4, VGPU_UUID_LEN - 4) == 0)
			return (int)i;
	return -1;
}

static void format_uuid(const CUuuid *u, char out[VGPU_UUID_LEN])
{
	const unsigned char *b = (const unsigned char *)u->bytes;

	snprintf(out, VGPU_UUID_LEN,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

int vgpu_card_of_uuid(const CUuuid *uuid)
{
	char text[VGPU_UUID_LEN];

	format_uuid(uuid, text);
	return card_of_uuid(text);
}

/* What an environment's limit goes beyond, where it may. */
static void learn_physical(struct vgpu_grant_card *c, CUdevice dev)
{
	size_t total = 0;

	if (c->mem_physical != VGPU_MEM_OF_CARD)
		return;
	if (!vgpu_real.cuDeviceTotalMem_v2 ||
	    vgpu_real.cuDeviceTotalMem_v2(&total, dev) != CUDA_SUCCESS)
		total = 0;
	c->mem_physical = c->mem_limit > total ? total : 0;
}

/* Returns the card's entry in the cache, or -1. Processes with different CUDA_VISIBLE_DEVICES number the
 * cards differently, so an entry belongs to a UUID. A card without an entry takes the first free one.
 * Entries are never given back, so all processes find the same one. */
static int env_entry(const char *uuid)
{
	uint64_t *keys = vgpu_state.cache.header->card_key;
	uint64_t key = 0, found;

	for (const char *p = uuid + 4; *p; p++)
		key = vgpu_mix(key, (unsigned char)*p);
	for (int i = 0; i < VGPU_MAX_CARDS; i++) {
		found = 0;
		if (CAS(&keys[i], &found, key) || found == key)
			return i;
	}
	return -1;
}

/* Puts the limits of the ordinal at the card's entry. If other cards have all entries, the ordinal's
 * entry counts for both cards. */
static int env_card(int ordinal, const char *uuid)
{
	VGPU_LOCK(&env_lock);
	struct vgpu_cache_header *h = vgpu_state.cache.header;
	struct vgpu_grant_card c;
	int card;

	if (ordinal < 0 || ordinal >= VGPU_MAX_CARDS)
		return -1;
	card = env_entry(uuid);
	if (card < 0)
		card = ordinal;
	c = vgpu_env_limits[ordinal];
	snprintf(c.uuid, sizeof c.uuid, "%.*s", VGPU_UUID_LEN - 1, uuid);
	vgpu_env_grant.card[card] = c;
	memcpy(h->uuid[card], c.uuid, sizeof c.uuid);
	h->mem_limit[card] = c.mem_limit;
	return card;
}

int vgpu_card_of_device(CUdevice dev)
{
	char text[VGPU_UUID_LEN];
	CUuuid uuid;
	CUresult r = -1;
	int n;

	if (!vgpu_state.grant || dev < 0 || dev >= MAX_DEVICES)
		return -1;
	int card = LOAD(&card_of_device[dev]);
	if (card != UNKNOWN_CARD)
		return card;
	if (vgpu_real.cuDeviceGetUuid_v2)
		r = vgpu_real.cuDeviceGetUuid_v2(&uuid, dev);
	if (r != CUDA_SUCCESS && vgpu_real.cuDeviceGetUuid)
		r = vgpu_real.cuDeviceGetUuid(&uuid, dev);
	if (r != CUDA_SUCCESS)
		return -1;
	format_uuid(&uuid, text);
	if (vgpu_state.from_env) {
		if (dev < VGPU_MAX_CARDS)
			learn_physical(&vgpu_env_limits[dev], dev);
		card = env_card(dev, text);
		STORE(&env_told, true);
	} else {
		card = card_of_uuid(text);
	}
	STORE(&card_of_device[dev], (signed char)card);
	if (vgpu_real.cuDeviceGetCount && vgpu_real.cuDeviceGetCount(&n) == CUDA_SUCCESS && n == 1)
		STORE(&vgpu_only_card, card);
	return card;
}

static bool has_mps(CUdevice dev)
{
	int on = 0;

	return vgpu_real.cuDeviceGetAttribute &&
	       vgpu_real.cuDeviceGetAttribute(&on, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, dev) ==
		       CUDA_SUCCESS &&
	       on == 1;
}

/* Whether this process computes through the server that gresd runs for the card. CUDA goes on
 * without one where it finds none. A folder of pipes that is not root's alone may be of a server of
 * the user's own, which the others of the card do not share. */
static bool is_client(CUdevice dev)
{
	const char *folder = LOAD(&pipes);
	struct stat st;

	return folder && stat(folder, &st) == 0 && st.st_uid == 0 &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH)) && has_mps(dev);
}

/* Without the server the process would have the card beside it, in equal parts, whatever its
 * job's share is. */
static bool not_served(int card, CUdevice dev)
{
	if (vgpu_state.grant->card[card].engine != VGPU_ENGINE_CONCURRENT || is_client(dev))
		return false;
	vgpu_warn_once("vgpu: engine: job %u has the engine concurrent, and process %d is no "
		       "client of its card's MPS server: want CUDA_MPS_PIPE_DIRECTORY as the "
		       "job's tasks get it; with it, the server is being started again",
		       vgpu_state.grant->job_id, (int)getpid());
	return true;
}

bool vgpu_not_granted(CUdevice dev)
{
	if (!vgpu_state.grant || vgpu_state.from_env || dev < 0 || dev >= MAX_DEVICES)
		return false;
	int card = vgpu_card_of_device(dev);
	if (card >= 0)
		return not_served(card, dev);
	/* Only where its UUID was told: an error here is the driver's to report. */
	if (LOAD(&card_of_device[dev]) == UNKNOWN_CARD)
		return false;
	vgpu_warn_once("vgpu: CUDA device %d: not one of the cards that this job was "
		       "granted: see CUDA_VISIBLE_DEVICES",
		       dev);
	return true;
}

void vgpu_cards_mps(void)
{
	vgpu_state.mps_client = has_mps(0);
}

void vgpu_env_cards(void)
{
	int n = 0, last = -1, card;

	if (!vgpu_real.cuDeviceGetCount || vgpu_real.cuDeviceGetCount(&n) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < n && i < VGPU_MAX_CARDS; i++) {
		card = vgpu_card_of_device(i);
		last = card > last ? card : last;
	}
	if (last >= 0)
		vgpu_state.ncards = vgpu_env_grant.ncards = (uint32_t)last + 1;
}

int vgpu_card_asked(void)
{
	CUdevice dev;

	if (!vgpu_state.grant || !vgpu_real.cuCtxGetDevice ||
	    vgpu_real.cuCtxGetDevice(&dev) != CUDA_SUCCESS)
		return -1;
	return vgpu_card_of_device(dev);
}

/* Limits by CUDA ordinal in a program that only asks NVML, such as nvidia-smi: what
 * CUDA would number the device, by CUDA_VISIBLE_DEVICES. (CUDA may put a faster
 * card first; cards that are alike keep NVML's order.) */
static int ordinal_of(const char *uuid, unsigned index)
{
	int ordinal = 0;

	if (!visible)
		return (int)index;
	for (const char *p = visible; *p; ordinal++) {
		size_t n = strcspn(p, ",");
		char *end;
		unsigned long number = strtoul(p, &end, 10);

		if ((end > p && end == p + n && number == index) ||
		    (n > 4 && (strncmp(p, "GPU-", 4) == 0 || strncmp(p, "MIG-", 4) == 0) &&
		     strncmp(p, uuid, n) == 0))
			return ordinal;
		p += n + (p[n] == ',');
	}
	return -1;
}

int vgpu_card_of_nvml(nvmlDevice_t device)
{
	unsigned index;
	char uuid[96];

	if (!vgpu_state.grant || !vgpu_real.nvmlDeviceGetUUID ||
	    vgpu_real.nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS)
		return -1;
	if (vgpu_state.from_env && !LOAD(&env_told)) {
		int ordinal = 0; /* the first limit, for a card without a number */

		if (vgpu_real.nvmlDeviceGetIndex &&
		    vgpu_real.nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS)
			ordinal = ordinal_of(uuid, index);
		return env_card(ordinal, uuid);
	}
	return card_of_uuid(uuid);
}
