// SPDX-License-Identifier: Apache-2.0
/* suspend.c - a process leaves its cards, with memory and contexts, and comes back to them. */
#include "model.h"

#include <errno.h>
#include <string.h>

void sim_proc_leave(struct sim_state *st, uint32_t proc, uint64_t had[SIM_MAX_CARDS])
{
	struct sim_proc *p = &st->proc[proc];

	for (uint32_t i = 0; i < SIM_MAX_CTX; i++)
		if (st->ctx[i].used && st->ctx[i].proc == proc)
			sim_ctx_leave(st, i);
	memcpy(had, p->mem, sizeof(p->mem));
	memset(p->mem, 0, sizeof(p->mem));
}

int sim_proc_return(struct sim_state *st, uint32_t proc, const uint64_t had[SIM_MAX_CARDS])
{
	for (uint32_t i = 0; i < st->ncards; i++) {
		if (!had[i] || sim_mem_add(st, proc, i, had[i]) == 0)
			continue;
		memset(st->proc[proc].mem, 0, sizeof(st->proc[proc].mem));
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < SIM_MAX_CTX; i++) {
		struct sim_ctx *x = &st->ctx[i];

		if (!x->used || x->proc != proc)
			continue;
		x->usable = 0;
		x->next = st->card[x->card].contexts;
		st->card[x->card].contexts = i + 1;
	}
	return 0;
}
