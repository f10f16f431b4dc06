/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.h - the estimated GPU time of a launch: a moving average for each function and grid. It
 * limits the work in flight. Work is charged its measured time (charge.h). Call these with gate.lock
 * held, except vgpu_cost_of(). Some fields are read without the lock, as their comments say.
 */
#ifndef VGPU_COMPUTE_COSTS_H
#define VGPU_COMPUTE_COSTS_H

#include <stdint.h>

struct vgpu_cost {
	uint64_t key;
	uint32_t est_ns;  /* read without the lock */
	uint32_t samples; /* 0: est_ns is not known; read without the lock */
	float longest_ns; /* that a launch took lately; 0: not known */
	uint32_t varies;  /* launches differ in length: so many more are measured one by one */
};
/* Launches of one function among others. */
struct vgpu_cost_part {
	struct vgpu_cost *cost;
	uint32_t launches;
};
/* The entry of a key, never NULL. If the table is full, it is taken from another key. */
struct vgpu_cost *vgpu_cost_of(uint64_t key);
/* The key names something else from now on. */
void vgpu_cost_forget(uint64_t key);
/* The estimate of the parts and of rest_ns of other work, in nanoseconds. */
double vgpu_costs_sum(const struct vgpu_cost_part *parts, unsigned n, double rest_ns);
/* So many measurements say little: the next launches can be longer. */
#define FEW_SAMPLES 8
/* A launch of the key may take so many nanoseconds more than est_ns: as long as the longest recent one, or
 * 0.2 ms if few were measured. */
uint64_t vgpu_cost_more(const struct vgpu_cost *c, uint64_t est_ns);
/* The parts and rest_ns of other work took at least and at most so many nanoseconds together. */
void vgpu_costs_learn(const struct vgpu_cost_part *parts, unsigned n, double rest_ns, double least,
		      double most);
/* A batch of launches of the key took so many nanoseconds of the card, without time of the host.
 * For batches without neighbors only. Call it before vgpu_costs_learn(). */
void vgpu_cost_took(struct vgpu_cost *c, unsigned launches, double ns);

#endif
