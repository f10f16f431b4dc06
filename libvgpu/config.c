/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - see config.h. */
#define _GNU_SOURCE
#include "config.h"
#include "old_strtol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SMALLEST "; the smallest limit is used"

/* Moves *text behind a unit and returns its power of two; 0 when there is none. */
static unsigned read_unit(char **text)
{
	static const char letters[] = "kmgt";
	char *p = *text;
	const char *unit = *p ? strchr(letters, *p | 0x20) : NULL;

	if (!unit)
		return 0;
	p++;
	if ((p[0] | 0x20) == 'i' && (p[1] | 0x20) == 'b')
		p += 2;
	*text = p;
	return 10 * (unsigned)(unit - letters + 1);
}

bool vgpu_parse_size(const char *text, uint64_t *bytes)
{
	char *end;

	if (*text < '1' || *text > '9')
		return false;
	errno = 0;
	uint64_t v = strtoull(text, &end, 10);
	unsigned shift = read_unit(&end);
	if (errno || *end || v > UINT64_MAX >> shift)
		return false;
	*bytes = v << shift;
	return true;
}

/* The value of name with that suffix; NULL when it is not set. */
static const char *variable(struct vgpu_env *env, const char *name, const char *suffix,
			    char full[64])
{
	snprintf(full, 64, "%s%s", name, suffix);
	const char *value = env->get(env, full);
	return value && *value ? value : NULL;
}

/* Puts the limits of the variables with that suffix over those of the card. */
static bool set_limits(struct vgpu_grant_card *c, struct vgpu_env *env, const char *suffix)
{
	char name[64];
	const char *mem = variable(env, "CUDA_DEVICE_MEMORY_LIMIT", suffix, name);
	uint64_t cores = 0;

	if (mem && !vgpu_parse_size(mem, &c->mem_limit)) {
		c->mem_limit = VGPU_SMALLEST_MEM;
		env->bad(env, name, mem, "a size such as 4096M or 8G" SMALLEST);
	}
	const char *sm = variable(env, "CUDA_DEVICE_SM_LIMIT", suffix, name);
	if (!sm)
		return mem;
	if (strcmp(sm, "0") == 0) {
		cores = 100;
	} else if (!vgpu_parse_size(sm, &cores) || cores > 100) {
		cores = VGPU_SMALLEST_CORES;
		env->bad(env, name, sm, "a percentage 1 to 100" SMALLEST);
	}
	c->share = c->cores = (uint32_t)cores;
	return true;
}

/* Whether memory beyond what the card has may be paged. */
static bool may_page(struct vgpu_env *env)
{
	char name[64];
	const char *value = variable(env, "CUDA_OVERSUBSCRIBE", "", name);

	if (!value || strcasecmp(value, "false") == 0 || strcmp(value, "0") == 0)
		return false;
	if (strcasecmp(value, "true") == 0 || strcmp(value, "1") == 0)
		return true;
	env->bad(env, name, value, "true or false; nothing is paged");
	return false;
}

bool vgpu_grant_from(struct vgpu_grant *g, struct vgpu_env *env)
{
	const char *policy = env->get(env, "GPU_CORE_UTILIZATION_POLICY");
	const char *priority = env->get(env, "CUDA_TASK_PRIORITY");
	struct vgpu_grant_card all = {.share = 100, .cores = 100, .mode = VGPU_MODE_HARD};
	bool any = set_limits(&all, env, "");

	all.mem_physical = may_page(env) ? VGPU_MEM_OF_CARD : 0;
	if (policy && strcasecmp(policy, "disable") == 0)
		all.mode = VGPU_MODE_OFF;
	if (priority && strcmp(priority, "0") == 0)
		all.priority = VGPU_PRIO_HIGH;
	memset(g, 0, sizeof *g);
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		char suffix[16];

		snprintf(suffix, sizeof suffix, "_%u", i);
		g->card[i] = all;
		any |= set_limits(&g->card[i], env, suffix);
	}
	g->magic = VGPU_GRANT_MAGIC;
	g->version = VGPU_REGION_VERSION;
	g->size = sizeof *g;
	g->ncards = VGPU_MAX_CARDS;
	return any;
}
