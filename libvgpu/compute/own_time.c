/* SPDX-License-Identifier: Apache-2.0 */
/* own_time.c - see own_time.h. Which part of the time is the job's own. */
#include "own_time.h"
#include "../atomic.h"

/* The weight of the schedule is that of all busy processes of the job. The neighbors' slices have a larger
 * part of the time if only some of these processes have work on the card. */
static double weight(const struct gate *g)
{
	double own = g->schedule.weight_ppm / 1e6;
	uint32_t busy = LOAD(&vgpu_state.grant->card[g->card].busy_procs), here = g->beside + 1;

	if (here >= busy)
		return own;
	own *= (double)here / busy;
	return own / (own + 1 - g->schedule.weight_ppm / 1e6);
}

uint64_t vgpu_gate_own(const struct gate *g, uint64_t now)
{
	const struct vgpu_schedule *s = &g->schedule;
	uint64_t past = now > g->own_at_ns ? now - g->own_at_ns : 0;

	if (!s->others || s->weight_ppm == 1000000)
		return g->own_ns + past;
	return g->own_ns + (uint64_t)((double)past * weight(g));
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
