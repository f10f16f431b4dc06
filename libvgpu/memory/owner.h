/* SPDX-License-Identifier: Apache-2.0 */
/* owner.h - which context memory ends with. */
#ifndef VGPU_MEMORY_OWNER_H
#define VGPU_MEMORY_OWNER_H

#include "../base/table.h"
#include "../base/util.h"

/* The contexts that the program has made, but primary ones: card, device, references. Those who
 * make and end contexts (hooks/context.c) keep it. */
extern struct vgpu_table vgpu_contexts_made;

/* The primary context of a card, as an owner: it has a handle only while it is there. */
static inline uint64_t vgpu_primary_owner(int card)
{
	return (uint64_t)card + 1;
}

/* The context that memory which is taken now ends with; a green one's is the primary's. */
uint64_t vgpu_context_owner(int card);

#endif
