/* SPDX-License-Identifier: Apache-2.0 */
/* own_time.c - see own_time.h. Which part of the time is the job's own. */
#include "own_time.h"

uint64_t vgpu_gate_own(const struct gate *g, uint64_t now)
{
	const struct vgpu_schedule *s = &g->schedule;
	uint64_t past = now > g->own_at_ns ? now - g->own_at_ns : 0;

	if (!s->others || s->weight_ppm == 1000000)
		return g->own_ns + past;
	return g->own_ns + past / 1000 * s->weight_ppm / 1000;
}

void vgpu_gate_follow(struct gate *g, const struct vgpu_schedule *s, uint64_t now)
{
	g->own_ns = vgpu_gate_own(g, now);
	g->own_at_ns = now;
	if (s->others != g->schedule.others || s->least_ppm != g->schedule.least_ppm)
		g->others_at_ns = now;
	g->schedule = *s;
}

double vgpu_own_part(const struct gate *g, uint64_t own_ns, uint64_t since, uint64_t now)
{
	uint64_t own = vgpu_gate_own(g, now) - own_ns;

	return now <= since || own >= now - since ? 1 : (double)own / (double)(now - since);
}
