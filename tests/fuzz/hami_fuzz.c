/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hami_fuzz.c - the view for HAMi's tools, over a cache file in which every process of
 * the job, and each tool, may have written anything: updates end, write into the view
 * alone, and leave numbers there that fit each other.
 */
#define _GNU_SOURCE
#include "../../libvgpu/hami_view.h"

#include "input.h"

#define WORDS_OF_SLOTS (sizeof(struct vgpu_slot) / 8 * 16)
#define MOST_WRITES 64

static char *file;
static struct vgpu_grant grant;
static struct vgpu_cache cache;

static void write_word(struct input *in)
{
	unsigned place = (unsigned)take(in, 1);
	size_t at = take(in, 2);
	uint64_t value = take(in, place & 0x80 ? 1 : 8);
	size_t procs = offsetof(struct vgpu_hami, proc_num) / 8;

	switch (place % 6) {
	case 0:
		((uint64_t *)&grant)[at % (sizeof grant / 8)] = value;
		break;
	case 1:
		((uint64_t *)cache.header)[at % (sizeof *cache.header / 8)] = value;
		break;
	case 2:
		((uint64_t *)cache.slots)[at % WORDS_OF_SLOTS] = value;
		break;
	case 3: /* the head, the first processes, the tail, the notes */
		((uint64_t *)file)[at % 1024] = value;
		break;
	case 4:
		((uint64_t *)file)[procs + at % 9] = value;
		break;
	default:
		((int32_t *)(file + offsetof(struct vgpu_hami, proc_num)))[at % 4] = (int32_t)value;
	}
}

static uint64_t updated(void)
{
	return ((struct vgpu_hami_notes *)(file + VGPU_HAMI_NOTES_OFFSET))->updated_ns;
}

static void check_view(const struct vgpu_hami *v)
{
	uint32_t ncards = grant.ncards < VGPU_HAMI_DEVICES ? grant.ncards : VGPU_HAMI_DEVICES;

	CHECK(v->initialized == VGPU_HAMI_MAGIC && v->device_num == ncards);
	CHECK(v->proc_num >= 0 && v->proc_num <= VGPU_HAMI_PROCS);
	for (int i = 0; i < v->proc_num; i++) {
		const struct vgpu_hami_proc *p = &v->proc[i];

		if (p->status == 0)
			continue;
		CHECK(p->seqlock % 2 == 0 &&
		      p->pid == (int32_t)VGPU_OWNER_PID(cache.slots[i].owner));
		for (uint32_t card = 0; card < ncards; card++) {
			const struct vgpu_hami_mem *m = &p->used[card];

			CHECK(m->context <= m->total && m->module <= m->total - m->context);
			CHECK(m->total == m->context + m->module + m->data);
			CHECK(m->total == cache.slots[i].card[card].mem);
			CHECK(p->util[card].sm <= 100 && p->monitor_used[card] == m->total);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vgpu_slot before[16];
	struct vgpu_cache_header header;
	struct input in = {.at = data, .left = size};
	uint64_t now = 0, last;

	if (!file) {
		file = calloc(1, VGPU_CACHE_SIZE);
		CHECK(file != NULL);
		cache.header = (void *)(file + VGPU_CACHE_OFFSET);
		cache.slots = (void *)(file + VGPU_SLOTS_OFFSET);
	}
	memset(&grant, 0, sizeof grant);
	grant.ncards = 2;
	memset(cache.header, 0, sizeof *cache.header);
	memset(cache.slots, 0, sizeof before);
	cache.header->max_slots = VGPU_MAX_SLOTS;
	cache.header->high_slot = 3;
	memset(file, 0, 1024 * 8);
	memset(file + offsetof(struct vgpu_hami, proc_num), 0,
	       VGPU_CACHE_OFFSET - offsetof(struct vgpu_hami, proc_num));
	for (int updates = 0; updates < 3; updates++) {
		for (unsigned n = (unsigned)take(&in, 1) % MOST_WRITES; n && in.left; n--)
			write_word(&in);
		now += take(&in, 5);
		memcpy(before, cache.slots, sizeof before);
		header = *cache.header;
		last = updated();
		vgpu_hami_view_update(file, &grant, &cache, now);
		CHECK(!memcmp(before, cache.slots, sizeof before));
		CHECK(!memcmp(&header, cache.header, sizeof header));
		if (updated() != last) { /* it was its turn */
			CHECK(updated() == now);
			check_view((struct vgpu_hami *)file);
		}
	}
	return 0;
}
