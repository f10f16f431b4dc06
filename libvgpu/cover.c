/* SPDX-License-Identifier: Apache-2.0 */
/* cover.c - see cover.h. */
#ifdef VGPU_PRELOAD
#include "cover.h"

#include <stddef.h>

static double later_of(double a, double b)
{
	return a > b ? a : b;
}

static double sooner_of(double a, double b)
{
	return a < b ? a : b;
}

/* Makes room: the oldest piece goes into the one after it. */
static void join_oldest(struct vgpu_cover *c)
{
	struct vgpu_cover_piece *oldest = &c->piece[0], *next = NULL, *last = &c->piece[c->n - 1];

	for (unsigned i = 1; i < c->n; i++)
		if (c->piece[i].begin < oldest->begin)
			oldest = &c->piece[i];
	for (unsigned i = 0; i < c->n; i++)
		if (&c->piece[i] != oldest && (!next || c->piece[i].begin < next->begin))
			next = &c->piece[i];
	next->begin = oldest->begin;
	next->filled += oldest->filled;
	*oldest = *last;
	c->n--;
}

double vgpu_cover_add(struct vgpu_cover *c, double begin, double end)
{
	struct vgpu_cover_piece all = {begin, end, 0};
	double added = end - begin;

	if (added <= 0)
		return 0;
	for (unsigned i = 0; i < c->n;) {
		struct vgpu_cover_piece *p = &c->piece[i];
		double both = sooner_of(end, p->end) - later_of(begin, p->begin);

		if (both < 0) {
			i++;
			continue;
		}
		added -= both * p->filled / (p->end - p->begin);
		all.begin = sooner_of(all.begin, p->begin);
		all.end = later_of(all.end, p->end);
		all.filled += p->filled;
		*p = c->piece[--c->n];
	}
	added = later_of(added, 0); /* but for rounding it is */
	all.filled += added;
	if (c->n == VGPU_COVER_PIECES)
		join_oldest(c);
	c->piece[c->n++] = all;
	return added;
}

void vgpu_cover_shift(struct vgpu_cover *c, double later)
{
	for (unsigned i = 0; i < c->n; i++) {
		c->piece[i].begin -= later;
		c->piece[i].end -= later;
	}
}
#endif
