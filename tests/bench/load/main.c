// SPDX-License-Identifier: Apache-2.0
/*
 * main.c - vgpu-load: one tenant of the benchmark.
 *
 * When everything is ready it prints the line "ready", and waits for the line
 * "go START END" (CLOCK_MONOTONIC, in ns), so that all tenants start together
 * whatever they took to get there. At END it prints one line of JSON. Another such
 * line may follow; the program ends with its input.
 */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static const char usage[] =
	"usage: vgpu-load --shape NAME --inner N --samples FILE [--sms N] [--idle ON:OFF]\n"
	"       vgpu-load --shape rhythm --rhythm PARTS --inner N --samples FILE [--sms N]\n"
	"       vgpu-load --calibrate | --cost | --cost-pairs, either with -paced\n"
	"  --shape    20us, 200us, 1ms, 5ms, 20ms, 50ms, graph, steps, persistent, burst\n"
	"             or product\n"
	"  --rhythm   kernels=N,kernel=US,launch=US,gap=US,wait=K,ahead=M,graph,streams=2,\n"
	"             copy=BYTES,late=MS/EVERY; each may be left out\n"
	"  --inner    rounds in a unit of work, from --calibrate\n"
	"  --sms      multiprocessors of the whole card, from --calibrate\n"
	"  --samples  where the progress is written\n"
	"  --idle     milliseconds of work and of rest, in turn\n";

void sleep_until(uint64_t ns)
{
	const struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

static bool cost_option(const char *arg, struct options *o)
{
	bool pairs = strncmp(arg, "--cost-pairs", 12) == 0;
	const char *rest = arg + (pairs ? 12 : 6);

	if (strncmp(arg, "--cost", 6) != 0 || (*rest && strcmp(rest, "-paced") != 0))
		return false;
	o->cost = !pairs;
	o->cost_pairs = pairs;
	o->cost_paced = *rest;
	return true;
}

static bool read_options(int argc, char **argv, struct options *o)
{
	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--calibrate") == 0) {
			o->calibrate = true;
			continue;
		}
		if (cost_option(argv[i], o))
			continue;
		if (strcmp(argv[i], "--shape") == 0)
			o->shape = value;
		else if (strcmp(argv[i], "--samples") == 0)
			o->samples = value;
		else if (strcmp(argv[i], "--rhythm") == 0)
			o->rhythm = value;
		else if (strcmp(argv[i], "--inner") == 0)
			o->inner = (unsigned)strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--sms") == 0)
			o->sms = (unsigned)strtoul(value, NULL, 10);
		else if (strcmp(argv[i], "--idle") != 0 ||
			 sscanf(value, "%u:%u", &o->on_ms, &o->off_ms) != 2 || !o->on_ms)
			return false;
		i++;
	}
	return o->calibrate || o->cost || o->cost_pairs || (o->shape && o->samples && o->inner);
}

static void tenant(struct card *c, const struct options *o, const struct shape *s,
		   const struct rhythm *r)
{
	unsigned long long start, end;
	struct player *player = NULL;
	struct shape beats = *s;
	int runs = 0;

	/* code and context are loaded before the clock runs */
	if (s->kind == RHYTHM) {
		player = rhythm_open(c, r);
		beats.units = card_beat_units(r->kernel);
	} else if (s->kind != PERSISTENT) {
		card_launch(c, s);
		must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
	}
	printf("ready\n");
	fflush(stdout);
	for (; scanf(" go %llu %llu", &start, &end) == 2 && end > start; runs++) {
		double late = late_s();
		struct samples *samples =
			samples_start(o->samples, c, &beats, (double)(end - start) / 1e9);

		if (player)
			rhythm_play(player, start, end);
		else
			work(c, s, o, start, end);
		samples_stop(samples);
		printf(",\"late_s\":%.4f}\n", late_s() - late);
		fflush(stdout);
	}
	if (!runs || !feof(stdin))
		die("start", "want the line: go START END");
}

/* Returns the shape that was asked for, and its rhythm; NULL: nothing of the kind. */
static const struct shape *asked(const struct options *o, struct rhythm *r)
{
	const struct shape *s = shape_named(o->shape);
	char why[256];

	if (!s)
		fprintf(stderr, "vgpu-load: --shape: \"%s\": unknown\n%s", o->shape, usage);
	else if (o->rhythm && s->kind != RHYTHM)
		fprintf(stderr, "vgpu-load: --rhythm is for --shape rhythm, not for %s\n",
			o->shape);
	else if (!rhythm_parse(o->rhythm ? o->rhythm : "", r, why, sizeof(why)))
		fprintf(stderr, "vgpu-load: --rhythm: %s\n", why);
	else
		return s;
	return NULL;
}

int main(int argc, char **argv)
{
	struct options o = {.inner = 1000};
	struct card c = {.sms = 0};
	const struct shape *s = NULL;
	struct rhythm r;

	if (!read_options(argc, argv, &o)) {
		fputs(usage, stderr);
		return 2;
	}
	if (o.shape && !(s = asked(&o, &r)))
		return 2;
	prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
	driver_load(NULL, false);
	card_open(&c, o.inner, o.sms);
	if (o.calibrate)
		printf("{\"inner\":%u,\"sms\":%d}\n", card_calibrate(&c), c.sms);
	else if (o.cost)
		cost(&c, o.cost_paced);
	else if (o.cost_pairs)
		cost_pairs(&c, o.cost_paced);
	else
		tenant(&c, &o, s, &r);
	return 0;
}
