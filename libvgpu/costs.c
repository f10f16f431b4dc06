/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.c - what one launch of a function with a given grid costs, learned
 * from measured batches. Lossy on purpose: two keys that meet in one entry
 * share an estimate, and every estimate is corrected by measurement anyway.
 */
#ifdef VGPU_PRELOAD
#include <string.h>

#include "vgpu.h"

#define ENTRIES 4096u
#define PROBES 8u
/* How fast an estimate follows its measurements. */
#define GAIN 0.25
#define WINDOW 32u

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

static uint32_t bounded(double ns)
{
	/* No kernel is shorter; nothing longer fits the entry. */
	return ns < 500 ? 500 : ns > 4e9 ? 4000000000u : (uint32_t)ns;
}

/* Of upper bounds the true cost is near the lowest, but single samples can be
 * too low: so of every window the third lowest counts. */
static void learn_bound(struct vgpu_cost *c, uint32_t sample)
{
	for (int i = 0; i < VGPU_COST_LOWEST; i++) {
		if (c->lowest[i] == 0 || sample < c->lowest[i]) {
			uint32_t pushed = c->lowest[i];

			c->lowest[i] = sample;
			sample = pushed;
			if (sample == 0)
				break;
		}
	}
	if (++c->bounds < WINDOW)
		return;
	c->est_ns = c->lowest[VGPU_COST_LOWEST - 1];
	memset(c->lowest, 0, sizeof c->lowest);
	c->bounds = 0;
}

void vgpu_cost_learn(struct vgpu_cost *c, double sample_ns, bool exact)
{
	double est = c->est_ns;

	/* Far off means other work than before: take it as it is. */
	if (c->samples == 0 || (exact && (sample_ns > 2 * est || sample_ns < est / 2)))
		c->est_ns = bounded(sample_ns);
	else if (exact)
		c->est_ns = bounded(est + GAIN * (sample_ns - est));
	else
		learn_bound(c, bounded(sample_ns));
	if (c->samples < UINT32_MAX)
		c->samples++;
}
#endif
