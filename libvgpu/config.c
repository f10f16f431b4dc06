/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - limits from the environment, for use without gresd: the variables
 * that HAMi-core reads, parsed strictly. Never looked at inside a job that has
 * a grant.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "vgpu.h"

bool vgpu_parse_size(const char *text, uint64_t *bytes)
{
	unsigned shift = 0;
	uint64_t v = 0;

	if (*text < '1' || *text > '9')
		return false;
	for (; *text >= '0' && *text <= '9'; text++) {
		if (v > (UINT64_MAX - 9) / 10)
			return false;
		v = v * 10 + (uint64_t)(*text - '0');
	}
	switch (*text | 0x20) {
	case 'k':
		shift = 10;
		break;
	case 'm':
		shift = 20;
		break;
	case 'g':
		shift = 30;
		break;
	case 't':
		shift = 40;
		break;
	default:
		break;
	}
	if (shift)
		text++;
	if (*text || v > UINT64_MAX >> shift)
		return false;
	*bytes = v << shift;
	return true;
}

/* NAME_<i>, else NAME. */
static const char *variable(const char *name, unsigned i)
{
	char indexed[64];
	const char *text;

	snprintf(indexed, sizeof indexed, "%s_%u", name, i);
	text = getenv(indexed);
	if (!text || !*text)
		text = getenv(name);
	return text && *text ? text : NULL;
}

static void complain(const char *name, const char *text, const char *want)
{
	/* A limit was meant: staying silent would open it. */
	fprintf(stderr, "vgpu: %s: \"%s\": want %s; the smallest limit is used\n", name, text,
		want);
}

bool vgpu_grant_from_env(struct vgpu_grant *g)
{
	const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");
	const char *priority = getenv("CUDA_TASK_PRIORITY");
	bool any = false;

	memset(g, 0, sizeof *g);
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		struct vgpu_grant_card *c = &g->card[i];
		const char *mem = variable("CUDA_DEVICE_MEMORY_LIMIT", i);
		const char *sm = variable("CUDA_DEVICE_SM_LIMIT", i);
		uint64_t cores = 100;

		if (mem && !vgpu_parse_size(mem, &c->mem_limit)) {
			complain("CUDA_DEVICE_MEMORY_LIMIT", mem, "a size such as 4096M or 8G");
			c->mem_limit = 1;
		}
		if (sm && (!vgpu_parse_size(sm, &cores) || cores > 100)) {
			if (strcmp(sm, "0") != 0) {
				complain("CUDA_DEVICE_SM_LIMIT", sm, "a percentage 1 to 100");
				cores = 1;
			} else {
				cores = 100;
			}
		}
		any = any || mem || sm;
		c->share = c->cores = (uint32_t)cores;
		c->mode = VGPU_MODE_HARD;
		if (policy && strcasecmp(policy, "disable") == 0)
			c->mode = VGPU_MODE_OFF;
		if (priority && strcmp(priority, "0") == 0)
			c->priority = VGPU_PRIO_HIGH;
	}
	g->magic = VGPU_GRANT_MAGIC;
	g->version = VGPU_REGION_VERSION;
	g->size = sizeof *g;
	g->uid = (uint32_t)getuid();
	g->gid = (uint32_t)getgid();
	g->ncards = VGPU_MAX_CARDS;
	return any;
}
#endif
