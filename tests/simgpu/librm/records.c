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

/* Whether a buffer is for the records of a card of the model: its GPU, and in MIG mode the
 * instances that it may see. In MIG mode, version 1 pauses. */
static bool is_for(const struct sim_state *st, const struct object *buffer, uint32_t card)
{
	const struct sim_card_config *c = &st->card[card].conf;

	if (!c->parent)
		return card == buffer->card;
	return c->parent == buffer->card + 1 && buffer->version == 2 && buffer->of == c->gi + 1;
}

static void put_one(const struct sim_state *st, struct object *buffer, uint32_t card,
		    const struct sim_switch *s)
{
	const struct sim_card_config *conf = &st->card[card].conf;
	struct buffer_header *h = buffer->header->at;
	struct buffer_record *to = buffer->record->at;
	uint32_t put = (h->put + 1) % buffer->records;
	bool v2 = buffer->version == 2;

	if (put == h->get) {
		h->dropped++;
		return;
	}
	to[h->put] = (struct buffer_record){
		.type = v2 ? TYPE_V2 : TYPE_V1,
		.tag = s->came ? TAG_START : TAG_END,
		.pid = (uint32_t)pid_here(st, s),
		.gpu_instance = !v2 ? 0 : (uint8_t)(conf->parent ? conf->gi : NO_INSTANCE),
		.compute_instance = !v2 ? 0 : (uint8_t)(conf->parent ? conf->ci : NO_INSTANCE),
		.at = s->at_ns};
	h->count++;
	__atomic_store_n(&h->put, put, __ATOMIC_RELEASE);
}

/* A full buffer keeps its oldest records; what finds no room is counted. Whoever comes
 * so late that the card itself has forgotten some gets none of those after them: a
 * reader may take it that records are missing at the end only. */
static void flush_card(struct sim_state *st, struct object *buffer, uint32_t card)
{
	struct buffer_header *h = buffer->header->at;
	const struct sim_card *c = &st->card[card];
	uint64_t *next = &buffer->next[card];

	if (c->records - *next > SIM_SWITCHES) {
		h->dropped += c->records - *next;
		*next = c->records;
	}
	for (; *next < c->records; ++*next)
		put_one(st, buffer, card, sim_switch_at(st, card, *next));
}

void records_flush(struct sim_state *st, struct object *buffer)
{
	if (!buffer->enabled || !buffer->bound)
		return;
	for (uint32_t i = 0; i < st->ncards; i++)
		if (is_for(st, buffer, i))
			flush_card(st, buffer, i);
}

void records_start(struct sim_state *st, struct object *buffer)
{
	for (uint32_t i = 0; i < st->ncards; i++)
		buffer->next[i] = st->card[i].records;
}
