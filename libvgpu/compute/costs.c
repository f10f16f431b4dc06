/* SPDX-License-Identifier: Apache-2.0 */
/* costs.c - see costs.h. */
#include "costs.h"
#include "../atomic.h"
#include "../base/util.h"

#define ENTRIES 4096u
#define PROBES 8u
/* Weight of a new measurement in the average. */
#define WEIGHT 0.125
/* The longest launch counts so much less with each measurement: it is halved after 170. */
#define FORGETS 1.004
/* Longer times say nothing of a launch: they may contain slices of a program that gresd does not
 * know. A long batch of short launches cannot consist of such slices. */
#define SLICE_NS 1e6
#define SLICES_MOST_NS 20e6
/* A launch that takes so much more than its estimate shows that launches of the key differ. */
#define DIFFERS 1.3
#define DIFFERS_NS 10000.0
/* The next launches are then measured one by one, until so many in a row did not differ. */
#define MEASURED_EACH 512

#define FEW_NS 200000

static struct vgpu_cost entries[ENTRIES];

/* The key's entry, or else a free one, or else the one with the fewest samples. */
static struct vgpu_cost *find(uint64_t key)
{
	unsigned at = (unsigned)((key * 0x9e3779b97f4a7c15ull) >> 40);
	struct vgpu_cost *c, *least = NULL;

	for (unsigned i = 0; i < PROBES; i++) {
		c = &entries[(at + i) % ENTRIES];
		if (LOAD(&c->key) == key || LOAD(&c->key) == 0)
			return c;
		if (!least || LOAD(&c->samples) < LOAD(&least->samples))
			least = c;
	}
	return least;
}

struct vgpu_cost *vgpu_cost_of(uint64_t key)
{
	struct vgpu_cost *c = find(key);

	if (likely(LOAD(&c->key) == key))
		return c;
	STORE(&c->samples, 0);
	STORE(&c->key, key);
	c->longest_ns = 0;
	c->varies = 0;
	return c;
}

void vgpu_cost_forget(uint64_t key)
{
	struct vgpu_cost *c = find(key);

	if (LOAD(&c->key) == key)
		STORE(&c->samples, 0);
}

double vgpu_costs_sum(const struct vgpu_cost_part *parts, unsigned n, double rest_ns)
{
	for (unsigned i = 0; i < n; i++)
		rest_ns += (double)parts[i].launches * parts[i].cost->est_ns;
	return rest_ns;
}

uint64_t vgpu_cost_more(const struct vgpu_cost *c, uint64_t est_ns)
{
	uint64_t longest = (uint64_t)c->longest_ns;

	if (LOAD(&c->samples) < FEW_SAMPLES && longest < FEW_NS)
		longest = FEW_NS;
	return longest > est_ns ? longest - est_ns : 0;
}

/* No kernel is shorter than 0.5 us; nothing longer than 4 s fits the entry. */
static void set(struct vgpu_cost *c, double ns)
{
	uint32_t samples = LOAD(&c->samples);

	STORE(&c->est_ns, ns < 500 ? 500 : ns > 4e9 ? 4000000000u : (uint32_t)ns);
	STORE(&c->samples, samples + (samples < UINT32_MAX)); /* last: read without the lock */
}

void vgpu_costs_learn(const struct vgpu_cost_part *parts, unsigned n, double rest_ns, double least,
		      double most)
{
	double sum = vgpu_costs_sum(parts, n, rest_ns), weight;
	double times = sum < least ? least / sum : sum > most ? most / sum : 1;

	for (unsigned i = 0; i < n; i++) {
		if (LOAD(&parts[i].cost->samples))
			continue;
		if (n == 1 && parts[0].launches)
			set(parts[0].cost, most / parts[0].launches);
		return; /* its part of the time is unknown */
	}
	for (unsigned i = 0; i < n; i++) {
		struct vgpu_cost *c = parts[i].cost;

		if (!parts[i].launches)
			continue; /* they failed */
		weight = 1.0 / (LOAD(&c->samples) + 1);
		weight = weight > WEIGHT ? weight : WEIGHT;
		set(c, c->est_ns * (1 + weight * (times - 1)));
	}
}

void vgpu_cost_took(struct vgpu_cost *c, unsigned launches, double ns)
{
	double before = (double)c->longest_ns / FORGETS, each = ns / launches;

	if (LOAD(&c->samples) && ns > DIFFERS * launches * c->est_ns + DIFFERS_NS)
		c->varies = MEASURED_EACH;
	else if (launches == 1 && c->varies)
		c->varies--;
	if (each >= SLICE_NS && (launches == 1 || ns <= SLICES_MOST_NS))
		return;
	each = each < SLICE_NS ? each : SLICE_NS;
	c->longest_ns = (float)(each > before ? each : before);
}
