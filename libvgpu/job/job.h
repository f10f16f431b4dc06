/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - this process's part of its job: the grant, the cache, its slot. */
#ifndef VGPU_JOB_JOB_H
#define VGPU_JOB_JOB_H

#include "../base/util.h"
#include "../region_ops.h"

struct vgpu_state {
	const struct vgpu_grant *grant; /* NULL: no limits here */
	struct vgpu_cache cache;
	struct vgpu_slot *slot; /* NULL when there is no grant */
	bool counted;           /* false: the slot is no part of the cache, nothing is given */
	unsigned ncards;
	uint32_t other_cards; /* a bit each: this process works on them without CUDA */
	bool from_env;        /* grant made from environment variables, no gresd behind it */
	bool mps_client;      /* its work has the time slice of an MPS server; set by cuInit */
};
/* Read-only, but for the slot, other_cards and mps_client, once vgpu_job_find() has returned. */
extern struct vgpu_state vgpu_state;

/* So often a process says in its slot that it is there. */
#define HEARTBEAT_NS 100000000u

/* Finds and maps grant and cache, claims a slot. Once a process. False: it has a job and
 * cannot take part in it, which is said; it gets no memory. */
bool vgpu_job_find(void);
/* A forked child has no slot, and gets no memory, until it asks for one: many children never
 * use CUDA. */
void vgpu_job_in_child(void);
void vgpu_job_claim(void);

static inline struct vgpu_slot_card *vgpu_my(int card)
{
	return &vgpu_state.slot->card[card];
}
static inline void vgpu_slot_flag(uint32_t set, uint32_t clear)
{
	uint32_t *flags = &vgpu_state.slot->flags, old = LOAD(flags);

	while (!CAS(flags, &old, (old | set) & ~clear))
		;
}
uint64_t vgpu_limit(int card);
/* All that counts for the job on a card: slots, and what gresd measured beside. */
uint64_t vgpu_mem_used(int card);
/* The part of it that no slot announces; may be negative. */
static inline int64_t vgpu_mem_outside(int card)
{
	return LOAD(&vgpu_state.grant->card[card].mem_outside);
}

#endif
