/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.h - which part of a time line has been charged for, so that work of streams that run
 * beside each other, in whatever order it is seen to have ended, is charged once.
 *
 * Not locked; without allocation.
 */
#ifndef VGPU_COMPUTE_COVER_H
#define VGPU_COMPUTE_COVER_H

#define VGPU_COVER_PIECES 32

/* Of begin to end, so much is covered. */
struct vgpu_cover_piece {
	double begin, end, filled;
};

/* Disjoint pieces. */
struct vgpu_cover {
	unsigned n;
	struct vgpu_cover_piece piece[VGPU_COVER_PIECES];
};

/* Covers begin to end. Returns how much of that was not covered before, 0 to end - begin. Exact
 * as long as there are no more pieces than fit; then the two oldest become one that is partly
 * covered, evenly. Any one unit. */
double vgpu_cover_add(struct vgpu_cover *c, double begin, double end);

/* The time line's zero is so much later from now on. */
void vgpu_cover_shift(struct vgpu_cover *c, double later);
#endif
