/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ended.c - memory of processes that have ended, given back when it is needed. A card
 * has the memory of a dead process again at once; here its slot counts until somebody
 * clears it. Of its own PID namespace a process sees itself who is dead; of others it
 * asks gresd before it says that there is no room, as gresd's clearing comes later.
 * What is cleared, and when, is in region_ops.c: the death is noted first, and after
 * VGPU_GRACE_NS gresd is asked again, so two looks must agree.
 *
 * A question is bounded: ANSWER_NS where gresd hangs, and then none for SULK_NS; one that
 * was answered is asked again AGAIN_NS later at the earliest, so a program that tries
 * again and again at its limit does not pay each time. On an H200 the memory of a
 * killed process is gone within 40 ms: who is refused sooner would be there too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../job/ask.h"
#include "../region_ops.h"
#include "account.h"

#define ANSWER_NS 250000000u
#define AGAIN_NS 40000000u
#define SULK_NS 2000000000u

static VGPU_PRIVATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_ns;    /* not asked before; under lock */
static uint64_t cleared_ns; /* when something was cleared last; under lock */

static bool read_answer(const char *answer, struct vgpu_ended *told)
{
	const char *p = strstr(answer, "\"ended\":[");
	char *end;

	told->n = 0;
	for (p = p ? strchr(p, '[') : ""; (*p == '[' || *p == ',') && told->n < VGPU_MAX_ENDED;
	     p = end) {
		told->owner[told->n] = strtoull(p + 1, &end, 10);
		told->n += end != p + 1;
	}
	return told->n > 0;
}

/* Asks gresd, and frees what can be freed now; *left_ns as vgpu_slot_reclaim()
 * says. lock is held. */
static bool look(uint64_t *left_ns)
{
	struct vgpu_ended told = {.n = 0};
	char question[64], answer[4096];

	snprintf(question, sizeof question, "{\"op\":\"ended\",\"job_id\":%u}\n",
		 vgpu_state.grant->job_id);
	bool answered = vgpu_ask(question, ANSWER_NS, answer, sizeof answer);
	next_ns = vgpu_now() + (answered ? AGAIN_NS : SULK_NS);
	*left_ns = 0;
	return answered && read_answer(answer, &told) &&
	       vgpu_slot_reclaim(&vgpu_state.cache, vgpu_state.slot, &told, left_ns) > 0;
}

static bool fits(int card, uint64_t bytes, uint64_t without)
{
	uint64_t used = vgpu_mem_used(card), limit = vgpu_limit(card);

	used = used > without ? used - without : 0;
	return bytes <= limit && used <= limit - bytes;
}

static bool make_room(int card, uint64_t bytes)
{
	uint64_t began = vgpu_now(), left_ns;

	if (began < next_ns)
		return false;
	bool some = look(&left_ns);
	while (left_ns && !fits(card, bytes, 0) && vgpu_now() - began < VGPU_GRACE_NS + ANSWER_NS) {
		left_ns += 1000000; /* its end must be seen */
		nanosleep(&(struct timespec){.tv_nsec = (long)left_ns}, NULL);
		some |= look(&left_ns);
	}
	return some;
}

bool vgpu_ended_make_room(int card, uint64_t bytes)
{
	uint64_t began = vgpu_now();
	int saved = errno;

	if (vgpu_state.from_env || !vgpu_state.counted ||
	    !fits(card, bytes, vgpu_mem_unjudged(&vgpu_state.cache, (unsigned)card)))
		return false;
	VGPU_NO_CANCEL;
	VGPU_LOCK(&lock);
	/* While this thread waited, another one did it. */
	bool some = cleared_ns >= began || make_room(card, bytes);
	if (some)
		cleared_ns = vgpu_now();
	errno = saved;
	return some;
}
