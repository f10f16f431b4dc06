/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.c - what one launch of a function with a given grid costs, learned
 * from measured batches. Lossy on purpose: two keys that meet in one entry
 * share an estimate, and every estimate is corrected by measurement anyway.
 */
#ifdef VGPU_PRELOAD
#include "vgpu.h"

#define ENTRIES 4096u
#define PROBES 8u
/* How fast an estimate follows its measurements. */
#define GAIN 0.25

static struct vgpu_cost entries[ENTRIES];

struct vgpu_cost *vgpu_cost_of(uint64_t key)
{
	unsigned at = (unsigned)((key * 0x9e3779b97f4a7c15ull) >> 40);
	struct vgpu_cost *c = NULL;

	for (unsigned i = 0; i < PROBES; i++) {
		c = &entries[(at + i) % ENTRIES];
		if (c->key == key)
			return c;
		if (c->key == 0) {
			c->key = key;
			return c;
		}
	}
	return c;
}

/* ratio: measured over estimated time of a batch that held this function;
 * tight: the batch had no idle time in it, so it may also raise the estimate. */
void vgpu_cost_learn(struct vgpu_cost *c, double ratio, uint64_t per_launch_ns, bool tight)
{
	double est;

	if (c->samples == 0) {
		est = (double)per_launch_ns;
	} else {
		if (!tight && ratio >= 1)
			return;
		if (ratio > 2)
			ratio = 2;
		est = ratio < 0.5 ? c->est_ns * ratio : c->est_ns * (1 + GAIN * (ratio - 1));
	}
	if (est < 500)
		est = 500; /* no kernel is shorter */
	if (est > 4e9)
		est = 4e9;
	c->est_ns = (uint32_t)est;
	if (c->samples < UINT32_MAX)
		c->samples++;
}
#endif
