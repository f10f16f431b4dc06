/* SPDX-License-Identifier: Apache-2.0 */
/* cover.c - see cover.h. */
#include "cover.h"

static double later_of(double a, double b)
{
	return a > b ? a : b;
}

static double sooner_of(double a, double b)
{
	return a < b ? a : b;
}

/* Makes room: the two oldest pieces become one. Batches end about in the order of time, so that
 * least is still to come there. */
static void join_oldest(struct vgpu_cover *c)
{
	unsigned first = 0, second = 1;

	for (unsigned i = 1; i < c->n; i++) {
		if (c->piece[i].begin < c->piece[first].begin) {
			second = first;
			first = i;
		} else if (i != second && c->piece[i].begin < c->piece[second].begin) {
			second = i;
		}
	}
	c->piece[first].end = c->piece[second].end;
	c->piece[first].filled += c->piece[second].filled;
	c->piece[second] = c->piece[--c->n];
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
