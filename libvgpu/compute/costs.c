/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs.c - what one launch of a function with a given grid costs, learned
 * from measured batches. Lossy on purpose: of keys that meet, one is forgotten, and
 * every estimate is corrected by measurement anyway.
 */
#include "costs.h"
#include "../base/util.h"

#define ENTRIES 4096u
#define PROBES 8u
/* What the time of a batch usually differs from the sum of its parts, as a part of it
 * and in nanoseconds. */
#define NOISE 0.02
#define NOISE_NS 1000.0
/* An estimate is never surer than this, so that it follows work that changes. */
#define DOUBT_LEAST 0.03f
#define DOUBT_MOST 1.0f
/* A measurement further off than so many standard deviations is taken for chance at
 * first, and the estimates for less sure. */
#define FAR 3.0
#define DOUBT_GROWS 2.0f
/* An estimate that a batch of several has made longer by this factor is to be proven anew. */
#define LONGER 1.25

static struct vgpu_cost entries[ENTRIES];

/* What is no longer launched makes room: of entries that are all taken, that of which least
 * is known. Whoever holds it learns once more, of another key, which measurement corrects. */
static struct vgpu_cost *taken_over(struct vgpu_cost *c, uint64_t key)
{
	__atomic_store_n(&c->samples, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&c->key, key, __ATOMIC_RELAXED);
	c->rejected = c->alone = c->unseen = c->varies = 0;
	c->unseen_ns = 0;
	c->most_ns = c->least_ns = c->longest_ns = 0;
	return c;
}

/* The key's entry, or the one that it may have. */
static struct vgpu_cost *find(uint64_t key)
{
	unsigned at = (unsigned)((key * 0x9e3779b97f4a7c15ull) >> 40);
	struct vgpu_cost *c, *least = NULL;

	for (unsigned i = 0; i < PROBES; i++) {
		c = &entries[(at + i) % ENTRIES];
		if (__atomic_load_n(&c->key, __ATOMIC_RELAXED) == key ||
		    __atomic_load_n(&c->key, __ATOMIC_RELAXED) == 0)
			return c;
		if (!least || __atomic_load_n(&c->samples, __ATOMIC_RELAXED) <
				      __atomic_load_n(&least->samples, __ATOMIC_RELAXED))
			least = c;
	}
	return least;
}

struct vgpu_cost *vgpu_cost_of(uint64_t key)
{
	struct vgpu_cost *c = find(key);
	uint64_t has = __atomic_load_n(&c->key, __ATOMIC_RELAXED);

	if (has == 0)
		__atomic_store_n(&c->key, key, __ATOMIC_RELAXED);
	else if (has != key)
		return taken_over(c, key);
	return c;
}

void vgpu_cost_forget(uint64_t key)
{
	struct vgpu_cost *c = find(key);

	if (__atomic_load_n(&c->key, __ATOMIC_RELAXED) == key)
		__atomic_store_n(&c->samples, 0, __ATOMIC_RELAXED);
}

static uint32_t bounded(double ns)
{
	/* No kernel is shorter; nothing longer fits the entry. */
	return ns < 500 ? 500 : ns > 4e9 ? 4000000000u : (uint32_t)ns;
}

double vgpu_costs_sum(const struct vgpu_cost_part *parts, unsigned n, double rest_ns)
{
	for (unsigned i = 0; i < n; i++)
		rest_ns += (double)parts[i].launches * parts[i].cost->est_ns;
	return rest_ns;
}

static void first(struct vgpu_cost *c, double ns)
{
	__atomic_store_n(&c->est_ns, bounded(ns), __ATOMIC_RELAXED);
	c->doubt = DOUBT_MOST;
	/* Last: a launch asks for it without the lock. */
	__atomic_store_n(&c->samples, 1, __ATOMIC_RELEASE);
}

static void confirm(struct vgpu_cost *c)
{
	uint32_t samples = __atomic_load_n(&c->samples, __ATOMIC_RELAXED);

	__atomic_store_n(&c->samples, samples + (samples < UINT32_MAX), __ATOMIC_RELAXED);
}

void vgpu_costs_scale(const struct vgpu_cost_part *parts, unsigned n, double by)
{
	for (unsigned i = 0; i < n; i++) {
		__atomic_store_n(&parts[i].cost->est_ns, bounded(parts[i].cost->est_ns * by),
				 __ATOMIC_RELAXED);
		parts[i].cost->doubt = DOUBT_MOST;
	}
}

double vgpu_costs_owed(struct vgpu_cost *c)
{
	double owed;

	if (!c->unseen || !__atomic_load_n(&c->samples, __ATOMIC_RELAXED))
		return 0;
	owed = (double)c->unseen * c->est_ns - (double)c->unseen_ns;
	c->unseen = 0;
	c->unseen_ns = 0;
	return owed > 0 ? owed : 0;
}

/* Halfway, for the launch's own time, which is taken off, is not known exactly. */
void vgpu_costs_alone(struct vgpu_cost *c, double least, double most)
{
	double est = c->est_ns;

	if (!__atomic_load_n(&c->samples, __ATOMIC_RELAXED)) {
		first(c, most);
		return;
	}
	est = est > most ? (est + most) / 2 : est < least ? (est + least) / 2 : est;
	__atomic_store_n(&c->est_ns, bounded(est), __ATOMIC_RELAXED);
	c->alone += c->alone < UINT32_MAX;
	confirm(c);
}

/* What was the shortest and the longest loosens by so much with each launch. */
#define LOOSENS 1.02
/* Of a part that is cut into slices, as much is sure. */
#define SURE 0.9

uint64_t vgpu_cost_more(const struct vgpu_cost *c, uint64_t est_ns)
{
	uint64_t longest = (uint64_t)c->longest_ns;

	return longest > est_ns ? longest - est_ns : 0;
}

/* That some took longer is forgotten by so much with each measurement. */
#define FORGETS 1.004

/* Slices of a program that gresd does not know are about that long, and in a batch of brief
 * launches they come to no more than SLICES_MOST_NS. */
#define SLICE_NS 1e6
#define SLICES_MOST_NS 20e6

void vgpu_cost_took(struct vgpu_cost *c, unsigned launches, double ns)
{
	double before = (double)c->longest_ns / FORGETS, each = ns / launches;

	if (each >= SLICE_NS && (launches == 1 || ns <= SLICES_MOST_NS))
		return; /* one of those slices may be in it */
	each = each < SLICE_NS ? each : SLICE_NS;
	c->longest_ns = (float)(each > before ? each : before);
}

/* A launch that took this factor and this time more than its estimate shows that launches differ. */
#define DIFFERS 1.3
#define DIFFERS_NS 10000.0
/* The next launches are then measured one by one, until so many in a row did not differ. */
#define MEASURED_EACH 512

void vgpu_cost_compare(struct vgpu_cost *c, unsigned launches, double ns)
{
	if (!__atomic_load_n(&c->samples, __ATOMIC_RELAXED))
		return;
	if (ns > DIFFERS * launches * c->est_ns + DIFFERS_NS)
		c->varies = MEASURED_EACH;
	else if (launches == 1 && c->varies)
		c->varies--;
}

double vgpu_costs_long(struct vgpu_cost *c, double took, double part, double least_part)
{
	double most = c->most_ns ? c->most_ns * LOOSENS : took;
	double least = c->least_ns / LOOSENS, cost = took * part;

	most = took < most ? took : most;
	least = SURE * took * least_part > least ? SURE * took * least_part : least;
	c->most_ns = (float)most;
	c->least_ns = (float)least;
	/* They contradict each other: launches are not all of one length. */
	if (least > most)
		return cost;
	return cost > most ? most : cost < least ? least : cost;
}

/* A Kalman filter of the functions' costs, without their covariances: what the time
 * is off goes to the functions in proportion to how unsure their part of it was. */
void vgpu_costs_learn(const struct vgpu_cost_part *parts, unsigned n, double rest_ns, double least,
		      double most)
{
	double sum = vgpu_costs_sum(parts, n, rest_ns), noise = NOISE * most + NOISE_NS;
	double off = sum < least ? least - sum : sum > most ? most - sum : 0;
	double unsure = noise, variance = noise * noise, part, gain, off_each, lowest;
	bool far;

	for (unsigned i = 0; i < n; i++) {
		if (__atomic_load_n(&parts[i].cost->samples, __ATOMIC_RELAXED))
			continue;
		if (n == 1 && parts[0].launches)
			first(parts[0].cost, least / parts[0].launches);
		return; /* among others there is no telling what it took */
	}
	/* Of a bound that holds there is nothing to learn, but that the estimates do. */
	if (off == 0 && least < most) {
		for (unsigned i = 0; i < n; i++)
			if (parts[i].launches)
				confirm(parts[i].cost);
		return;
	}
	for (unsigned i = 0; i < n; i++) {
		part = (double)parts[i].launches * parts[i].cost->est_ns * parts[i].cost->doubt;
		unsure += part;
		variance += part * part;
	}
	far = off > FAR * unsure || off < -FAR * unsure;
	if (far)
		off = off > 0 ? FAR * unsure : -FAR * unsure;
	for (unsigned i = 0; i < n; i++) {
		struct vgpu_cost *c = parts[i].cost;
		float doubt = c->doubt;

		if (!parts[i].launches)
			continue; /* they failed */
		part = (double)parts[i].launches * c->est_ns * doubt;
		gain = part * part / variance;
		off_each = gain * off / parts[i].launches;
		/* Launches of one key may differ in length. What is too much is then not all of
		 * the one that is least sure: it would fall to nothing, and stay there. */
		lowest = c->est_ns * (most / sum - 1);
		if (off < 0 && off_each < lowest)
			off_each = lowest;
		if (off_each > (LONGER - 1) * c->est_ns)
			c->alone = 0;
		__atomic_store_n(&c->est_ns, bounded(c->est_ns + off_each), __ATOMIC_RELAXED);
		/* The root of 1 - gain, nearly. */
		doubt *= far ? DOUBT_GROWS : (float)(1 - gain / 2);
		c->doubt = doubt < DOUBT_LEAST  ? DOUBT_LEAST
			   : doubt > DOUBT_MOST ? DOUBT_MOST
						: doubt;
		confirm(c);
	}
}
