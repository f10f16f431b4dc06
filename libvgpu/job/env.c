/* SPDX-License-Identifier: Apache-2.0 */
/* env.c - see env.h. */
#include <stdlib.h>
#include <unistd.h>

#include "../base/log.h"
#include "env.h"

/* The period of the slices that processes without gresd set for themselves. */
#define ENV_PERIOD_US 20000u
/* Taken for a context's cost until the card's own count is known: the largest
 * measured (527 MiB, H200, driver 580). */
#define ENV_CONTEXT_BYTES (528ull << 20)

struct vgpu_grant vgpu_env_grant;
struct vgpu_grant_card vgpu_env_limits[VGPU_MAX_CARDS];

static const char *from_process(struct vgpu_env *env, const char *name)
{
	(void)env;
	return getenv(name);
}

static void complain(struct vgpu_env *env, const char *name, const char *value, const char *want)
{
	(void)env;
	/* A limit was meant: staying silent would open it. */
	vgpu_warn("vgpu: %s: \"%.64s\": want %s", name, value, want);
}

bool vgpu_grant_from_env(struct vgpu_grant *g)
{
	bool any = vgpu_grant_from(g, &(struct vgpu_env){from_process, complain});

	g->uid = (uint32_t)getuid();
	g->gid = (uint32_t)getgid();
	for (unsigned i = 0; i < g->ncards; i++) {
		struct vgpu_grant_card *c = &g->card[i];

		c->gate = c->mode == VGPU_MODE_HARD && c->cores < 100;
		if (c->mode != VGPU_MODE_OFF && c->cores < 100)
			c->slice_us = ENV_PERIOD_US * c->cores / 100;
		c->weight_ppm = 1000000;
		c->mem_overhead = ENV_CONTEXT_BYTES;
		vgpu_env_limits[i] = *c;
	}
	return any;
}
