/* SPDX-License-Identifier: Apache-2.0 */
/* hami_view.c - see hami_view.h. */
#include "hami_view.h"

#include <string.h>

/* HAMi's numbers: 0 before 1; older monitors use the number as an index of an
 * array of two. */
#define PRIORITY_HIGH 0
#define PRIORITY_NORMAL 1
#define STATUS_RUNNING 1
#define RECENT 2 /* what its library stores at a launch */
#define MAX_ELAPSED_NS 3600000000000u

/* A semaphore of value 1, shared between processes: a tool that locks the
 * region before it reads need not wait for a process that would never post. */
static const uint8_t sem_free[VGPU_HAMI_SEM_LEN] = {[0] = 1, [8] = 0x80};

static bool take_turn(struct vgpu_hami_notes *notes, uint64_t now)
{
	uint64_t last = LOAD(&notes->updated_ns);

	/* The clock may have been set back, or read before another's update. */
	if ((now > last ? now - last : last - now) < VGPU_HAMI_PERIOD_NS)
		return false;
	return CAS(&notes->updated_ns, &last, now);
}

/* Writes a process in whole words. Its seqlock moves to the next even number before and after, also from
 * an odd one that a foreign writer left. */
static void put(struct vgpu_hami_proc *p, const struct vgpu_hami_proc *new)
{
	const uint64_t *from = (const void *)new;
	uint64_t *to = (void *)p;

	STORE(&p->seqlock, (LOAD(&p->seqlock) | 1) + 1);
	for (size_t i = 0; i < sizeof *p / sizeof *to; i++)
		if (&to[i] != &p->seqlock)
			STORE(&to[i], from[i]);
	STORE(&p->seqlock, (LOAD(&p->seqlock) | 1) + 1);
}

static uint64_t at_most(uint64_t n, uint64_t max)
{
	return n < max ? n : max;
}

/* The kinds may lag behind the total, so the rest of it limits each. */
static struct vgpu_hami_mem mem_of(const struct vgpu_slot_card *card)
{
	uint64_t total = LOAD(&card->mem);
	uint64_t context = at_most(LOAD(&card->mem_context), total);
	uint64_t module = at_most(LOAD(&card->mem_module), total - context);

	return (struct vgpu_hami_mem){
		.context = context,
		.module = module,
		.data = total - context - module,
		.total = total,
	};
}

/* Percent of the elapsed time that the GPU time grew by. Too long a time: the clock was set back. */
static uint64_t percent(uint64_t gpu_ns, uint64_t seen_ns, uint64_t elapsed_ns)
{
	uint64_t grown = gpu_ns > seen_ns ? gpu_ns - seen_ns : 0;

	if (elapsed_ns == 0 || elapsed_ns > MAX_ELAPSED_NS)
		return 0;
	return grown >= elapsed_ns ? 100 : grown * 100 / elapsed_ns;
}

/* Returns true if the process launched something since the last update. */
static bool put_proc(struct vgpu_hami_proc *p, const struct vgpu_slot *slot, uint64_t owner,
		     uint32_t ncards, uint64_t now)
{
	bool seen = LOAD(&p->seen_owner) == owner, busy = false;
	uint64_t elapsed = seen ? now - LOAD(&p->seen_ns) : 0;
	struct vgpu_hami_proc new = {
		.pid = (int32_t)VGPU_OWNER_PID(owner),
		.host_pid = (int32_t)LOAD(&slot->host_pid),
		.status = STATUS_RUNNING,
		.seen_owner = owner,
		.seen_ns = now,
	};

	for (uint32_t i = 0; i < ncards; i++) {
		const struct vgpu_hami_util *old = &p->util[i];
		uint64_t gpu_ns = LOAD(&slot->card[i].gpu_ns);
		uint64_t launches = LOAD(&slot->card[i].launches);

		new.used[i] = mem_of(&slot->card[i]);
		new.monitor_used[i] = new.used[i].total;
		new.util[i].sm = percent(gpu_ns, LOAD(&old->seen_gpu_ns), elapsed);
		new.util[i].seen_gpu_ns = gpu_ns;
		new.util[i].seen_launches = launches;
		busy |= launches != (seen ? LOAD(&old->seen_launches) : 0);
	}
	put(p, &new);
	return busy;
}

/* Returns true if some process launched something since the last update. */
static bool put_procs(struct vgpu_hami *v, const struct vgpu_cache *c, uint32_t high,
		      uint32_t ncards, uint64_t now)
{
	static const struct vgpu_hami_proc none;
	int32_t shown = LOAD(&v->proc_num), used = 0;
	bool busy = false;

	if (shown < 0 || shown > VGPU_HAMI_PROCS)
		shown = VGPU_HAMI_PROCS;
	for (int32_t i = 0; i < (int32_t)high || i < shown; i++) {
		const struct vgpu_slot *slot = &c->slots[i];
		uint64_t owner = i < (int32_t)high ? LOAD(&slot->owner) : 0;

		if (owner != 0) {
			busy |= put_proc(&v->proc[i], slot, owner, ncards, now);
			used = i + 1;
		}
		/* Given back meanwhile: what was copied may be of two processes. */
		if (owner == 0 || LOAD(&slot->owner) != owner)
			put(&v->proc[i], &none);
	}
	STORE(&v->proc_num, used);
	return busy;
}

static uint64_t sm_limit(const struct vgpu_grant_card *card, uint32_t cores)
{
	if (card->mode == VGPU_MODE_HARD)
		return cores;
	if (card->mode == VGPU_MODE_SOFT && card->ceiling != 0)
		return card->ceiling;
	return 100;
}

static void put_cards(struct vgpu_hami *v, const struct vgpu_grant *g, uint32_t ncards)
{
	int32_t priority = PRIORITY_NORMAL, gated = 0;

	for (uint32_t i = 0; i < ncards; i++) {
		const struct vgpu_grant_card *card = &g->card[i];
		struct vgpu_schedule s = {.cores = LOAD(&card->cores), .gate = LOAD(&card->gate)};

		/* Only other processes use the card of this entry. */
		if (!card->uuid[0])
			continue;
		vgpu_schedule_read(g, i, &s, vgpu_now());
		/* Part of the mapped file. NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker) */
		if (strncmp(v->uuid[i], card->uuid, VGPU_UUID_LEN) != 0)
			memcpy(v->uuid[i], card->uuid, VGPU_UUID_LEN);
		STORE(&v->limit[i], card->mem_limit);
		STORE(&v->sm_limit[i], sm_limit(card, s.cores));
		if (card->priority == VGPU_PRIO_HIGH)
			priority = PRIORITY_HIGH;
		gated |= s.gate != 0;
	}
	STORE(&v->device_num, ncards);
	STORE(&v->priority, priority);
	STORE(&v->utilization_switch, gated);
}

/* For a new file, and for one that a HAMi of another version has left. */
static void start_view(struct vgpu_hami *v)
{
	const size_t head = offsetof(struct vgpu_hami, sm_init_flag);

	if (LOAD(&v->initialized) == VGPU_HAMI_MAGIC && LOAD(&v->major) == VGPU_HAMI_MAJOR &&
	    LOAD(&v->minor) == VGPU_HAMI_MINOR)
		return;
	STORE(&v->initialized, 0);
	/* Part of the mapped file. NOLINTBEGIN(clang-analyzer-core.NonNullParamChecker) */
	memset((char *)v + head, 0, offsetof(struct vgpu_hami, proc) - head);
	memcpy(v->sem, sem_free, sizeof v->sem);
	memcpy(v->sem_postinit, sem_free, sizeof v->sem_postinit);
	/* NOLINTEND(clang-analyzer-core.NonNullParamChecker) */
	STORE(&v->last_kernel_time, 0);
	STORE(&v->major, VGPU_HAMI_MAJOR);
	STORE(&v->minor, VGPU_HAMI_MINOR);
}

/* Whether the pages of the view for so many processes can be written. */
static bool has_room(const struct vgpu_hami *v, uint32_t procs)
{
	size_t tail = offsetof(struct vgpu_hami, proc_num);

	return vgpu_has_pages(v, offsetof(struct vgpu_hami, proc) + procs * sizeof v->proc[0]) &&
	       vgpu_has_pages((const char *)v + tail,
			      VGPU_HAMI_NOTES_OFFSET + sizeof(struct vgpu_hami_notes) - tail);
}

void vgpu_hami_view_update(void *file_start, const struct vgpu_grant *g, const struct vgpu_cache *c,
			   uint64_t now)
{
	struct vgpu_hami *v = file_start;
	uint32_t ncards = (uint32_t)at_most(g->ncards, VGPU_HAMI_DEVICES);
	uint32_t high = (uint32_t)at_most(LOAD(&c->header->high_slot), VGPU_HAMI_PROCS);

	/* Without gresd, other processes may use cards that this process does not see. */
	while (ncards < VGPU_HAMI_DEVICES && LOAD(&c->header->card_key[ncards]))
		ncards++;
	/* A view that ends the program that it is of, by SIGBUS, is not worth it. */
	if (!has_room(v, high) ||
	    !take_turn((void *)((char *)file_start + VGPU_HAMI_NOTES_OFFSET), now))
		return;
	start_view(v);
	put_cards(v, g, ncards);
	bool busy = put_procs(v, c, high, ncards, now);
	STORE(&v->recent_kernel, busy ? RECENT : 0);
	if (busy)
		STORE(&v->last_kernel_time, now / 1000000000u);
	STORE(&v->initialized, VGPU_HAMI_MAGIC);
}
