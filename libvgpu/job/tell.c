/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tell.c - the two things that the job's user is told without asking gresd: why an
 * allocation was refused (VGPU_OOM_MESSAGE=0: not), and what the process has been
 * given (VGPU_VERBOSE=1). One write to stderr each, which never waits, raises no
 * SIGPIPE and leaves errno alone. Called with no lock held; no CUDA call.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/log.h"
#include "../base/util.h"
#include "job.h"
#include "tell.h"

/* A program that tries again and again is told once in this time, and so often at
 * most; the next line says how many refusals had none. */
#define AGAIN_NS 30000000000ull
#define MOST_LINES 20u
/* Processes that are named, the largest first. */
#define NAMED 4
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static bool quiet, verbose;

void vgpu_tell_settings(void)
{
	const char *oom = getenv("VGPU_OOM_MESSAGE"), *loud = getenv("VGPU_VERBOSE");

	quiet = oom && strcmp(oom, "0") == 0;
	verbose = loud && *loud && strcmp(loud, "0") != 0;
}

/* A line that is built piece by piece; what does not fit is left out. At most
 * PIPE_BUF, so that lines of several processes do not mix. */
struct line {
	char text[1024];
	size_t len;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *fmt, ...)
{
	size_t room = sizeof l->text - 1 - l->len; /* one for the newline */
	va_list ap;

	va_start(ap, fmt);
	int n = vsnprintf(l->text + l->len, room, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->len += (size_t)n < room ? (size_t)n : room - 1;
}

/* Bytes as people read them: GiB with one digit, MiB below, KiB below that. */
static struct size {
	char text[24];
} size_of(uint64_t bytes)
{
	uint64_t tenths = (bytes / (GIB / 1024) * 10 + 512) / 1024;
	struct size s;

	if (bytes >= GIB && tenths % 10)
		snprintf(s.text, sizeof s.text, "%" PRIu64 ".%" PRIu64 " GiB", tenths / 10,
			 tenths % 10);
	else if (bytes >= GIB)
		snprintf(s.text, sizeof s.text, "%" PRIu64 " GiB", tenths / 10);
	else if (bytes >= MIB)
		snprintf(s.text, sizeof s.text, "%" PRIu64 " MiB", bytes / MIB);
	else
		snprintf(s.text, sizeof s.text, "%" PRIu64 " KiB", (bytes + 1023) / 1024);
	return s;
}

static void say(struct line *l)
{
	l->text[l->len++] = '\n';
	vgpu_say(l->text, l->len);
}

struct user {
	uint32_t pid;
	uint64_t mem;
};

/* The largest users of the card besides this process, how many there are in all,
 * and what they hold. */
static unsigned others(int card, struct user top[NAMED], uint64_t *sum)
{
	uint32_t high = LOAD(&vgpu_state.cache.header->high_slot);
	unsigned n = 0;

	*sum = 0;
	for (uint32_t i = 0; i < high && i < VGPU_MAX_SLOTS; i++) {
		const struct vgpu_slot *s = &vgpu_state.cache.slots[i];
		struct user u = {s->pid, LOAD(&s->card[card].mem)};

		if (s == vgpu_state.slot || !LOAD(&s->owner) || !u.mem)
			continue;
		*sum += u.mem;
		n++;
		for (unsigned k = 0; k < NAMED; k++) {
			if (u.mem > top[k].mem) {
				struct user smaller = top[k];

				top[k] = u;
				u = smaller;
			}
		}
	}
	return n;
}

static void add_use(struct line *l, int card)
{
	struct user top[NAMED] = {{0, 0}};
	int64_t beside = vgpu_mem_outside(card);
	uint64_t sum;
	unsigned n = others(card, top, &sum);

	add(l, ", of which this process (%d) holds %s", (int)getpid(),
	    size_of(LOAD(&vgpu_my(card)->mem)).text);
	for (unsigned k = 0; k < NAMED && k < n; k++) {
		add(l, ", process %u %s", top[k].pid, size_of(top[k].mem).text);
		sum -= top[k].mem;
	}
	if (n > NAMED)
		add(l, ", %u more processes %s", n - NAMED, size_of(sum).text);
	if (beside >= (int64_t)MIB)
		add(l, ", the driver beside them %s", size_of((uint64_t)beside).text);
}

/* How to get more, as the user has to write it. */
static void add_remedy(struct line *l, int card, uint64_t need)
{
	uint64_t gib = (need + GIB - 1) / GIB;

	if (vgpu_state.from_env)
		add(l, ". The limit is from CUDA_DEVICE_MEMORY_LIMIT");
	else
		add(l, ". To have more: submit with --vgpu-mem=%" PRIu64 "G",
		    gib * GIB > vgpu_limit(card) ? gib : gib + 1);
}

void vgpu_tell_oom(int card, uint64_t bytes)
{
	static uint64_t next_ns;
	static unsigned lines, untold;
	uint64_t now = vgpu_now(), due = LOAD(&next_ns);
	uint64_t used = vgpu_mem_used(card);
	struct line l = {.len = 0};

	if (quiet)
		return;
	if (now < due || LOAD(&lines) >= MOST_LINES || !CAS(&next_ns, &due, now + AGAIN_NS)) {
		ADD(&untold, 1);
		return;
	}
	ADD(&lines, 1);
	unsigned missed = EXCHANGE(&untold, 0);
	if (unlikely(!vgpu_state.counted))
		return; /* said when no place was found for this process */
	add(&l, "vgpu: memory: %s refused: the limit of ",
	    bytes ? size_of(bytes).text : "room for a CUDA context, code or a graph");
	if (vgpu_state.from_env)
		add(&l, "this process");
	else
		add(&l, "job %u", vgpu_state.grant->job_id);
	add(&l, " on card %d is %s, used are %s", card, size_of(vgpu_limit(card)).text,
	    size_of(used).text);
	add_use(&l, card);
	add_remedy(&l, card, used + (bytes ? bytes : GIB / 2));
	if (missed)
		add(&l, " (and %u refusals since the last such line)", missed);
	say(&l);
}

void vgpu_tell_ungated(int card)
{
	const struct vgpu_grant_card *c = &vgpu_state.grant->card[card];

	if (c->mode == VGPU_MODE_HARD && c->cores < 100)
		vgpu_warn_once("vgpu: compute: process %d works on card %d by calls that no gate "
			       "holds: its hard limit of %u%% acts as a soft one: it holds while "
			       "other jobs use the card",
			       (int)getpid(), card, c->cores);
}

static const char *mode_name(uint32_t mode)
{
	return mode == VGPU_MODE_HARD ? "hard" : mode == VGPU_MODE_SOFT ? "soft" : "off";
}

void vgpu_tell_grant(void)
{
	struct line l = {.len = 0};

	if (!verbose)
		return;
	if (!vgpu_state.grant)
		add(&l, "vgpu: process %d: no share: no limits here", (int)getpid());
	else if (vgpu_state.from_env)
		add(&l, "vgpu: process %d: limits from the environment", (int)getpid());
	else
		add(&l, "vgpu: process %d of job %u", (int)getpid(), vgpu_state.grant->job_id);
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		const struct vgpu_grant_card *c = &vgpu_state.grant->card[i];

		if (vgpu_state.from_env && !c->mem_limit && c->cores >= 100)
			continue;
		add(&l, "%s card %u: compute %u%% (%s), memory %s", i ? ";" : ":", i, c->cores,
		    mode_name(c->mode),
		    c->mem_limit ? size_of(c->mem_limit).text : "without a limit");
	}
	say(&l);
}
