/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region_ops.h - arithmetic on the grant and cache files (region_*.c).
 *
 * Pure: no driver, no threads, no globals but the clock. libvgpu.so runs it in the job's
 * processes, Go tests run the same code through cgo. All shared fields are
 * read and written with sequentially consistent atomics.
 */
#ifndef VGPU_REGION_OPS_H
#define VGPU_REGION_OPS_H

#include <stdbool.h>
#include <time.h>

#include "atomic.h"
#include "region.h"

/* Reads a clock as clock_gettime(2) does. libvgpu has the C library's own here, for a preload of
 * the user's (faketime) may have a faster one, and budgets would fill as fast. */
extern int (*vgpu_clock)(clockid_t clock, struct timespec *ts);
/* CLOCK_MONOTONIC by it, in nanoseconds. */
uint64_t vgpu_now(void);

/* A mapped cache file. */
struct vgpu_cache {
	struct vgpu_cache_header *header;
	struct vgpu_slot *slots;
};

/* One consistent reading of a card's schedule. */
struct vgpu_schedule {
	uint32_t cores, slice_us, gate, weight_ppm, others, least_ppm;
	uint32_t turn_period_us, turn_queue_us, turn_length_us;
	uint64_t turn_begin_ns, lease_ns, solo;
	uint32_t seq; /* of the sequence lock: a later schedule has a higher number */
};

/* True when the bytes are a grant of this version. */
bool vgpu_grant_valid(const void *grant, size_t size);

/* True when the header says this version and the given number of bytes is
 * enough for it. */
bool vgpu_cache_valid(const struct vgpu_cache_header *h, size_t size);

/* Fills the header of a new, zeroed cache from a grant. */
void vgpu_cache_init(struct vgpu_cache_header *h, const struct vgpu_grant *g);

/* Reads card i's schedule under its sequence lock. Gives up after a bounded
 * number of tries (a writer killed while writing) and says false: keep the
 * schedule you had. The lease is applied: if it has expired at that time, the gate is the budget's. */
bool vgpu_schedule_read(const struct vgpu_grant *g, unsigned i, struct vgpu_schedule *s,
			uint64_t now_ns);

/* Whose PID namespace judges which slots are dead. */
struct vgpu_judge {
	uint32_t ns; /* bits of an owner word; VGPU_NS_UNKNOWN: judges nobody */
	uint64_t pid_ns;
};
struct vgpu_judge vgpu_judge(void);
/* Whether the owner of a slot lives in the judge's namespace. */
bool vgpu_same_ns(const struct vgpu_judge *j, const struct vgpu_slot *slot, uint64_t owner);

uint64_t vgpu_owner_word(uint32_t ns, uint32_t pid, uint64_t start_time);

/* The owner word of a process of the caller's PID namespace. */
uint64_t vgpu_owner(uint32_t pid, uint64_t start_time);

/* Inode of the caller's PID namespace; 0 when /proc does not say it. */
uint64_t vgpu_pid_ns(void);
/* What the kernel numbers the first one (PROC_PID_INIT_INO). */
#define VGPU_FIRST_PID_NS 0xEFFFFFFCu

/* Start time of the caller, whatever PID namespace /proc shows. */
uint64_t vgpu_own_start_time(void);

/* Start time of a process (pid 0: of the caller) in clock ticks since boot; 0 if there is none, if it
 * has ended and only waits for its parent, or if that cannot be read. */
uint64_t vgpu_start_time(uint32_t pid);

/* Whether the process that an owner word of the caller's PID namespace names has ended
 * for certain: there is no such pid, it waits for its parent, or its start time was read
 * and is another one. A process that cannot be looked at lives, as where the caller has no
 * descriptor left or /proc hides it. */
bool vgpu_has_ended(uint64_t owner);

/* What died_ns of a slot says when its owner is seen dead at that time. */
uint64_t vgpu_death_note(uint64_t owner, uint64_t now_ns);

/* Claims a free slot (or one of a dead process) for (pid, start_time), a process
 * of the caller's PID namespace. Returns the slot, zeroed but for who owns it, or
 * NULL when all are taken (errno as it was), or when the next one would lie on a page that
 * the cache's file system has no room for (ENOSPC). */
struct vgpu_slot *vgpu_slot_claim(struct vgpu_cache *c, uint32_t pid, uint64_t start_time);

/* Makes sure that a part of a mapped cache can be written. Its pages come when they
 * are first touched; where the file system is full, the kernel ends the process for
 * that by SIGBUS. False, with errno ENOSPC: so it would be. Linux below 5.14 cannot tell, and the
 * answer is true. */
bool vgpu_has_pages(const void *p, size_t size);

/* How many slots, from the first, may be in use; never more than the mapping
 * holds, whatever the header says. */
uint32_t vgpu_slots_in_use(const struct vgpu_cache *c);

/* Gives the slot back; the caller owns it. */
void vgpu_slot_release(struct vgpu_slot *slot);

/* Owners of slots whose processes have ended, as gresd says, which sees all PID
 * namespaces. It names owners and not slots: a slot may be another's by now. */
#define VGPU_MAX_ENDED 128
struct vgpu_ended {
	unsigned n;
	uint64_t owner[VGPU_MAX_ENDED];
};

/* Frees the slots of processes that were seen dead VGPU_GRACE_NS ago or earlier, and
 * notes the death of others. Of processes of other PID namespaces, those that were
 * told (NULL: none) are dead. self: the caller's slot, which is never freed; NULL: it has
 * none. Returns how many were freed; *left_ns: so long and all others that are dead can
 * be, 0 for none. May be run by any process of the job at any time, also by several at
 * once. */
unsigned vgpu_slot_reclaim(struct vgpu_cache *c, const struct vgpu_slot *self,
			   const struct vgpu_ended *told, uint64_t *left_ns);

/* Bytes on a card of slots in other PID namespaces, of which the caller cannot say
 * whether their processes live. */
uint64_t vgpu_mem_unjudged(const struct vgpu_cache *c, unsigned card);

/* Bytes that all slots together hold on a card. */
uint64_t vgpu_mem_sum(const struct vgpu_cache *c, unsigned card);

/* Announces bytes on the caller's slot and keeps them if the job, with outside
 * bytes that no slot announces (may be negative), stays within limit (0: no
 * limit). Waits up to VGPU_GRACE_NS for memory of processes that have just died.
 * Returns 0, or -ENOMEM with nothing changed. */
int vgpu_mem_reserve(struct vgpu_cache *c, struct vgpu_slot *self, unsigned card, uint64_t bytes,
		     uint64_t limit, int64_t outside);

/* sum + outside, between 0 and UINT64_MAX. */
uint64_t vgpu_mem_with(uint64_t sum, int64_t outside);

/* Takes bytes back; never below zero. */
void vgpu_mem_release(struct vgpu_slot *self, unsigned card, uint64_t bytes);

/* Credits the budget with cores/100 of the time since the last credit, up to a balance of
 * most_ns. The first call sets the balance to most_ns. Lock-free: only the process that exchanges
 * refilled_ns adds the credit. */
void vgpu_budget_refill(struct vgpu_budget *b, uint64_t now_ns, uint32_t cores, int64_t most_ns);

/* Adds the change of credit_ns of card i to the balance. A change below zero is added at once. One
 * above zero raises the balance up to most_ns; the rest waits in the grant until the balance has room.
 * Call this after vgpu_budget_refill. Lock-free: only the process that exchanges credited_us adds it. */
void vgpu_budget_credit(const struct vgpu_grant *g, struct vgpu_cache_header *h, int i,
			int64_t most_ns);

/* Nanoseconds of wall time until the balance is wanted_ns; 0 when it is. */
uint64_t vgpu_budget_wait(const struct vgpu_budget *b, uint32_t cores, uint32_t wanted_ns);

/* True if no launch of the job that began to wait before since_ns is held back by the
 * budget. The caller then is the next, and others wait for it, until it calls
 * vgpu_order_leave, or for 50 ms after its last look. To be asked at each look, before
 * the balance is read. Lock-free; a process that is stopped or dies holds nobody up. */
bool vgpu_order_first(struct vgpu_budget *b, uint64_t since_ns, uint64_t now_ns);

/* The launch has been charged, or waits for something else. */
void vgpu_order_leave(struct vgpu_budget *b, uint64_t since_ns);

/* Nanoseconds until the next window, 0 when work that begins at start_ns may go
 * now. first: nothing is in flight, and work too long for any window may begin. */
uint64_t vgpu_window_wait(const struct vgpu_schedule *s, uint64_t now_ns, uint64_t start_ns,
			  bool first);

#endif
