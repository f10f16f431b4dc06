/* SPDX-License-Identifier: Apache-2.0 */
/*
 * first_use.c - which handles have been used before. With lazy loading the first use of
 * a kernel, a library or a variable in a context takes the memory of its code; programs
 * ask for the same ones at every step, and to look at the card's free memory each time
 * costs a call of the driver, which waits for whatever else the node does with any card
 * (docs/adr/0011).
 *
 * Lossy: a use that has been pushed out by another is looked at again.
 */
#include "../driver/real.h"
#include "memory.h"

/* With one place for each key, two kernels of a training step can push each other out
 * at every step (seen on an H200: docs/adr/0011). */
#define PLACES 8u
#define SETS 2048u

static uint64_t used[SETS][PLACES]; /* by key; 0: none */
static uint64_t era = 1;
static unsigned victim;

uint64_t vgpu_use_key(const char *call, const void *handle, const char *name)
{
	CUcontext ctx = NULL;

	if (vgpu_real.cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx)
		return 0;
	uint64_t key = vgpu_mix(LOAD(&era), (uint64_t)(uintptr_t)ctx);
	key = vgpu_mix(vgpu_mix(key, (uint64_t)(uintptr_t)call), (uint64_t)(uintptr_t)handle);
	for (; name && *name; name++)
		key = vgpu_mix(key, (unsigned char)*name);
	return key;
}

bool vgpu_used(uint64_t key)
{
	uint64_t *set = used[key % SETS];

	for (unsigned i = 0; key && i < PLACES; i++)
		if (LOAD(&set[i]) == key)
			return true;
	return false;
}

void vgpu_use_note(uint64_t key)
{
	uint64_t *set = used[key % SETS];
	unsigned i = 0;

	if (!key || vgpu_used(key))
		return;
	while (i < PLACES && LOAD(&set[i]))
		i++;
	if (i == PLACES) /* all places are taken, most likely by forgotten keys */
		i = ADD(&victim, 1) % PLACES;
	STORE(&set[i], key);
}

void vgpu_uses_forget(void)
{
	ADD(&era, 1);
}
