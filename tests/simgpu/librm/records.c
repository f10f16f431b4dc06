// SPDX-License-Identifier: Apache-2.0
/* records.c - hands the records of a card's context switches to a reader's buffer. */
#define _GNU_SOURCE
#include "local.h"

/* What a process is called here, where the reader is. It is known only while the
 * process lives, and its records are read later: so it is kept. */
static struct {
	int32_t pid; /* as the process knows itself */
	uint64_t start_time;
	int32_t here;
} known[SIM_MAX_PROCS];

static int32_t pid_here(const struct sim_state *st, const struct sim_switch *s)
{
	const struct sim_proc *p = &st->proc[s->proc];

	if (known[s->proc].pid == s->pid && known[s->proc].start_time == s->start_time)
		return known[s->proc].here;
	if (!p->used || p->pid != s->pid || p->start_time != s->start_time)
		return s->pid; /* it ended before anybody looked */
	known[s->proc].pid = s->pid;
	known[s->proc].start_time = s->start_time;
	known[s->proc].here = sim_proc_pid(st, s->proc);
	return known[s->proc].here;
}

/* A full buffer keeps its oldest records; what finds no room is counted. Whoever comes
 * so late that the card itself has forgotten some gets none of those after them: a
 * reader may take it that records are missing at the end only. */
void records_flush(struct sim_state *st, struct object *buffer)
{
	struct buffer_header *h = buffer->header->at;
	struct buffer_record *to = buffer->record->at;
	const struct sim_card *c = &st->card[buffer->card];

	if (!buffer->enabled || !buffer->bound)
		return;
	if (c->records - buffer->next > SIM_SWITCHES) {
		h->dropped += c->records - buffer->next;
		buffer->next = c->records;
	}
	for (; buffer->next < c->records; buffer->next++) {
		const struct sim_switch *s = sim_switch_at(st, buffer->card, buffer->next);
		uint32_t put = (h->put + 1) % buffer->records;

		if (put == h->get) {
			h->dropped++;
			continue;
		}
		to[h->put] = (struct buffer_record){.tag = s->came ? TAG_START : TAG_END,
						    .pid = (uint64_t)pid_here(st, s),
						    .at = s->at_ns};
		h->count++;
		__atomic_store_n(&h->put, put, __ATOMIC_RELEASE);
	}
}
