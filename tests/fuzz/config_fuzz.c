/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_fuzz.c - limits from the environment. Whatever the variables hold, no card
 * has more than a limit that was meant: a value that is not understood is told, and
 * gives the smallest.
 */
#define _GNU_SOURCE
#include "../../libvgpu/config.h"

#include <stdio.h>

#include "../../libvgpu/region_ops.h"
#include "input.h"

struct variables {
	struct vgpu_env env;
	struct input in;
	const char *mem, *sm, *mem1, *sm1, *paged, *policy, *priority;
	unsigned told;
};

static const char *get(struct vgpu_env *env, const char *name)
{
	struct variables *v = (struct variables *)env;

	if (!strcmp(name, "CUDA_DEVICE_MEMORY_LIMIT"))
		return v->mem;
	if (!strcmp(name, "CUDA_DEVICE_SM_LIMIT"))
		return v->sm;
	if (!strcmp(name, "CUDA_DEVICE_MEMORY_LIMIT_1"))
		return v->mem1;
	if (!strcmp(name, "CUDA_DEVICE_SM_LIMIT_1"))
		return v->sm1;
	if (!strcmp(name, "CUDA_OVERSUBSCRIBE"))
		return v->paged;
	if (!strcmp(name, "GPU_CORE_UTILIZATION_POLICY"))
		return v->policy;
	return strcmp(name, "CUDA_TASK_PRIORITY") ? NULL : v->priority;
}

static void bad(struct vgpu_env *env, const char *name, const char *value, const char *want)
{
	struct variables *v = (struct variables *)env;

	CHECK(*name && *value && strlen(want) > 10);
	v->told++;
}

static void check_size(const char *text)
{
	uint64_t bytes = 0x5a5a;
	char again[32];
	uint64_t same = 0;

	if (!vgpu_parse_size(text, &bytes)) {
		CHECK(bytes == 0x5a5a);
		return;
	}
	CHECK(bytes > 0);
	snprintf(again, sizeof again, "%llu", (unsigned long long)bytes);
	CHECK(vgpu_parse_size(again, &same) && same == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct variables v = {.env = {get, bad}, .in = {.at = data, .left = size}};
	unsigned set = (unsigned)take(&v.in, 1);
	struct vgpu_grant g;
	bool any;

	v.mem = set & 1 ? take_text(&v.in) : NULL;
	v.sm = set & 2 ? take_text(&v.in) : NULL;
	v.mem1 = set & 4 ? take_text(&v.in) : NULL;
	v.sm1 = set & 8 ? take_text(&v.in) : NULL;
	v.paged = set & 16 ? take_text(&v.in) : NULL;
	v.policy = set & 32 ? take_text(&v.in) : NULL;
	v.priority = set & 64 ? take_text(&v.in) : NULL;
	for (unsigned i = 0; i < v.in.texts; i++)
		check_size(v.in.text[i]);
	any = vgpu_grant_from(&g, &v.env);
	CHECK(any ==
	      ((v.mem && *v.mem) || (v.sm && *v.sm) || (v.mem1 && *v.mem1) || (v.sm1 && *v.sm1)));
	CHECK(vgpu_grant_valid(&g, sizeof g));
	for (unsigned i = 0; i < VGPU_MAX_CARDS; i++) {
		const struct vgpu_grant_card *c = &g.card[i];

		CHECK(c->cores >= 1 && c->cores <= 100 && c->share == c->cores);
		CHECK(!(v.mem && *v.mem) || c->mem_limit > 0);
		CHECK(c->mem_physical == 0 || c->mem_physical == VGPU_MEM_OF_CARD);
	}
	CHECK(!(v.mem1 && *v.mem1) || g.card[1].mem_limit > 0);
	CHECK(v.told <= 5);
	give_back(&v.in);
	return 0;
}
