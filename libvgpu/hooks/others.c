/* SPDX-License-Identifier: Apache-2.0 */
/* others.c - see others.h. */
#include <string.h>

#include "../compute/queues.h"
#include "../job/job.h"
#include "../memory/objects.h"
#include "others.h"

static const struct {
	const char *name;
	void *hook;
} hooks[] = {
#define CL(name, params) {#name, (void *)name},
#define VK(result, name, params) {#name, (void *)name},
#define GL VK
#define CL_USE(name, params)
#define VK_USE(result, name, params)
#define GL_USE VK_USE
#include "../driver/others.def"
};

void *vgpu_others_named(const char *name)
{
	for (unsigned i = 0; name && i < sizeof hooks / sizeof *hooks; i++)
		if (strcmp(name, hooks[i].name) == 0)
			return hooks[i].hook;
	return NULL;
}

uint32_t vgpu_others_cards(void)
{
	uint32_t cards = 0;

	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		cards |= (uint32_t)vgpu_others_on((int)i) << i;
	return cards;
}

void vgpu_others_waited(bool just_now)
{
	if (vgpu_state.grant)
		vgpu_marks_look(just_now);
}
