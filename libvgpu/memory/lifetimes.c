/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetimes.c - how much memory the allocations of a graph hold at once. They are put into
 * places, as an allocator would: each into one whose last tenant is freed before, by the
 * order of the graph. Tenants of one place are never there together, so all places
 * together are enough.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lifetimes.h"

/* Steps, and bytes, that a graph is worth. */
#define MOST_WORK (32ull << 20)

struct place {
	uint64_t bytes;
	bool *after; /* nodes that come after the free of its last tenant; NULL: it stays */
};

struct order {
	size_t nodes, edges;
	uint32_t *first; /* of each node's followers, and of one more */
	uint32_t *follower, *sorted, *waits, *stack;
};

static bool make_room(struct order *o)
{
	o->first = calloc(o->nodes + 2, sizeof *o->first);
	o->follower = calloc(o->edges + 1, sizeof *o->follower);
	o->sorted = calloc(o->nodes + 1, sizeof *o->sorted);
	o->waits = calloc(o->nodes + 1, sizeof *o->waits);
	o->stack = calloc(o->nodes + 1, sizeof *o->stack);
	return o->first && o->follower && o->sorted && o->waits && o->stack;
}

static void drop(struct order *o)
{
	free(o->first);
	free(o->follower);
	free(o->sorted);
	free(o->waits);
	free(o->stack);
}

/* Followers of each node, and all nodes in an order in which they can run; false when there
 * is none. */
static bool sort(struct order *o, const struct vgpu_edge *edge)
{
	size_t done = 0, known = 0;

	for (size_t i = 0; i < o->edges; i++) {
		if (edge[i].from >= o->nodes || edge[i].to >= o->nodes)
			return false;
		o->first[edge[i].from + 2]++;
		o->waits[edge[i].to]++;
	}
	for (size_t i = 2; i < o->nodes + 2; i++)
		o->first[i] += o->first[i - 1];
	for (size_t i = 0; i < o->edges; i++)
		o->follower[o->first[edge[i].from + 1]++] = edge[i].to;
	for (size_t i = 0; i < o->nodes; i++)
		if (o->waits[i] == 0)
			o->sorted[known++] = (uint32_t)i;
	for (; done < known; done++)
		for (uint32_t k = o->first[o->sorted[done]]; k < o->first[o->sorted[done] + 1]; k++)
			if (--o->waits[o->follower[k]] == 0)
				o->sorted[known++] = o->follower[k];
	return known == o->nodes;
}

/* Marks what comes after a node. */
static void mark_after(const struct order *o, uint32_t node, bool *after)
{
	size_t n = 0;

	memset(after, 0, o->nodes);
	o->stack[n++] = node;
	while (n) {
		uint32_t at = o->stack[--n];

		for (uint32_t k = o->first[at]; k < o->first[at + 1]; k++) {
			uint32_t next = o->follower[k];

			if (!after[next])
				o->stack[n++] = next;
			after[next] = true;
		}
	}
}

/* The place that has to grow least. NULL: none is free when the node runs. */
static struct place *place_for(struct place *place, size_t places, uint32_t node, uint64_t bytes)
{
	struct place *best = NULL;

	for (size_t i = 0; i < places; i++) {
		struct place *p = &place[i];

		if (!p->after || !p->after[node])
			continue;
		if (!best || (best->bytes < bytes ? p->bytes > best->bytes
						  : p->bytes >= bytes && p->bytes < best->bytes))
			best = p;
	}
	return best;
}

/* False when there is no memory to say. */
static bool settle(const struct order *o, const struct vgpu_life *l, struct place *place,
		   size_t *places)
{
	struct place *p = place_for(place, *places, l->born, l->bytes);

	if (!p)
		p = &place[(*places)++];
	if (p->bytes < l->bytes)
		p->bytes = l->bytes;
	if (l->freed >= o->nodes) {
		free(p->after);
		p->after = NULL;
		return true;
	}
	if (!p->after)
		p->after = calloc(o->nodes, sizeof *p->after);
	if (p->after)
		mark_after(o, l->freed, p->after);
	return p->after != NULL;
}

uint64_t vgpu_held_at_once(const struct vgpu_life *life, size_t lives, const struct vgpu_edge *edge,
			   size_t edges, size_t nodes)
{
	struct order o = {.nodes = nodes, .edges = edges};
	struct place *place = NULL;
	uint32_t *of = NULL; /* node -> its life, and one */
	uint64_t sum = 0, held = 0;
	size_t places = 0;
	bool known;

	for (size_t i = 0; i < lives; i++)
		sum += life[i].bytes;
	if (lives < 2 || nodes >= VGPU_NEVER || edges >= VGPU_NEVER ||
	    lives > MOST_WORK / (nodes + edges + lives))
		return sum;
	known = make_room(&o) && (place = calloc(lives, sizeof *place)) != NULL &&
		(of = calloc(nodes + 1, sizeof *of)) != NULL && sort(&o, edge);
	for (size_t i = 0; i < lives && known; i++) {
		known = life[i].born < nodes && !of[life[i].born];
		if (known)
			of[life[i].born] = (uint32_t)i + 1;
	}
	for (size_t i = 0; i < nodes && known; i++)
		if (of[o.sorted[i]])
			known = settle(&o, &life[of[o.sorted[i]] - 1], place, &places);
	for (size_t i = 0; i < places; i++) {
		held += place[i].bytes;
		free(place[i].after);
	}
	free(place);
	free(of);
	drop(&o);
	return known ? held : sum;
}
