/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h - the learned GPU time of a launch, by function and grid. */
#ifndef VGPU_COMPUTE_COSTS_H
#define VGPU_COMPUTE_COSTS_H

#include <stdint.h>

struct vgpu_cost {
	uint64_t key;
	uint32_t est_ns;
	uint32_t samples;  /* 0: not learned */
	float doubt;       /* standard deviation of the estimate, as a part of it */
	uint32_t alone;    /* so many launches of it were measured alone since it became longer */
	uint32_t rejected; /* samples in a row that looked interrupted */
	float longer;      /* the least of them, in times of the estimate */
	/* One launch that is longer than a slice, beside others: it costs at most what the
	 * shortest of the last has taken, and at least the part that is surely its own of
	 * the longest. 0: not known. */
	float most_ns, least_ns;
	float longest_ns; /* that a launch has taken lately; 0: not known */
	uint32_t varies;  /* launches differ in length: so many more are each measured */
	/* Launches before the first that was measured, and what they were charged. */
	uint32_t unseen;
	uint64_t unseen_ns;
};
/* Launches of one function among others. */
struct vgpu_cost_part {
	struct vgpu_cost *cost;
	uint32_t launches;
};
/* Entry for the key; never NULL. Where the table is full another key's is taken for it. */
struct vgpu_cost *vgpu_cost_of(uint64_t key);
/* What is known of a key is no longer true. */
void vgpu_cost_forget(uint64_t key);
/* What the parts are taken for now, and rest_ns for the others, in nanoseconds. */
double vgpu_costs_sum(const struct vgpu_cost_part *parts, unsigned n, double rest_ns);
/* Launches of the key, in one batch and without jobs beside, have surely taken so many nanoseconds
 * together. A program that gresd does not know may have been on the card. */
void vgpu_cost_took(struct vgpu_cost *c, unsigned launches, double ns);
/* Launches of one key may differ: by so much more than est_ns one has taken lately. */
uint64_t vgpu_cost_more(const struct vgpu_cost *c, uint64_t est_ns);
/* A batch of the key's launches took so many nanoseconds of the card, without the host's time.
 * Call this without neighbors only. */
void vgpu_cost_compare(struct vgpu_cost *c, unsigned launches, double ns);
/* Learns from launches that ran one after another: together they took the card at
 * least and at most so many nanoseconds. rest_ns: what is not among the parts. */
void vgpu_costs_learn(const struct vgpu_cost_part *parts, unsigned n, double rest_ns, double least,
		      double most);
/* What launches of a function were charged too little before it was known, in nanoseconds;
 * asked once. 0: nothing, or it is not known yet. */
double vgpu_costs_owed(struct vgpu_cost *c);
/* A launch that was measured alone took at least and at most so many nanoseconds. */
void vgpu_costs_alone(struct vgpu_cost *c, double least, double most);
/* All of the estimates are wrong by this factor, and unsure. */
void vgpu_costs_scale(const struct vgpu_cost_part *parts, unsigned n, double by);
/* What one launch that took so many nanoseconds is taken to have cost: around part of it,
 * where other launches of the function do not say better. least_part of it is surely its
 * own; 0: that is not known. */
double vgpu_costs_long(struct vgpu_cost *c, double took, double part, double least_part);

#endif
