// SPDX-License-Identifier: Apache-2.0
/* rhythm_parse.c - the text of a rhythm: kernels=300,kernel=50,wait=4. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char possible[] =
	"want some of kernels=N, kernel=US, launch=US, gap=US, wait=K, ahead=M, graph, "
	"streams=2, copy=BYTES, late=MS/EVERY";

/* A number from least to most that ends where the text does. */
static bool number(const char *text, double least, double most, double *out)
{
	char *end;

	*out = strtod(text, &end);
	return *text >= '0' && *text <= '9' && !*end && *out >= least && *out <= most;
}

static bool whole(const char *text, double least, double most, unsigned *out)
{
	double v;

	if (!number(text, least, most, &v) || v != (double)(unsigned)v)
		return false;
	*out = (unsigned)v;
	return true;
}

static bool lateness(const char *text, struct rhythm *r)
{
	const char *slash = strchr(text, '/');
	char ms[32];

	if (!slash || (size_t)(slash - text) >= sizeof(ms))
		return false;
	snprintf(ms, sizeof(ms), "%.*s", (int)(slash - text), text);
	return number(ms, 0, 10000, &r->late_ms) && whole(slash + 1, 1, 1e6, &r->late_every);
}

/* Returns what the value may be, NULL when it is that. */
static const char *part(const char *name, const char *value, struct rhythm *r)
{
	if (strcmp(name, "kernels") == 0)
		return whole(value, 1, 100000, &r->kernels) ? NULL : "a number from 1 to 100000";
	if (strcmp(name, "kernel") == 0)
		return number(value, 1, 1e6, &r->kernel) ? NULL : "microseconds from 1 to 1000000";
	if (strcmp(name, "launch") == 0)
		return number(value, 0, 1e6, &r->launch) ? NULL : "microseconds up to 1000000";
	if (strcmp(name, "gap") == 0)
		return number(value, 0, 1e7, &r->gap) ? NULL : "microseconds up to 10000000";
	if (strcmp(name, "wait") == 0)
		return whole(value, 0, 1e6, &r->wait) ? NULL : "a number of steps; 0: never";
	if (strcmp(name, "ahead") == 0)
		return whole(value, 1, 64, &r->ahead) ? NULL : "a number from 1 to 64";
	if (strcmp(name, "streams") == 0)
		return whole(value, 1, 2, &r->streams) ? NULL : "1 or 2";
	if (strcmp(name, "copy") == 0)
		return whole(value, 0, 1 << 30, &r->copy) ? NULL : "bytes, up to 1 GiB";
	if (strcmp(name, "late") == 0)
		return lateness(value, r) ? NULL : "MS/EVERY, such as 80/60";
	return possible;
}

bool rhythm_parse(const char *text, struct rhythm *r, char *why, size_t size)
{
	static const struct rhythm usual = {.kernels = 10, .kernel = 100, .wait = 1, .streams = 1};
	char copy[256], *rest = copy, *word;

	*r = usual;
	if (strlen(text) >= sizeof(copy)) {
		snprintf(why, size, "longer than %zu characters", sizeof(copy) - 1);
		return false;
	}
	strcpy(copy, text);
	while (*text && (word = strsep(&rest, ",")) != NULL) {
		char *value = strchr(word, '=');
		const char *want;

		if (strcmp(word, "graph") == 0) {
			r->graph = true;
			continue;
		}
		if (value)
			*value++ = 0;
		want = part(word, value ? value : "", r);
		if (want) {
			snprintf(why, size, "\"%s%s%s\": %s%s", word, value ? "=" : "",
				 value ? value : "", want == possible ? "" : "want ", want);
			return false;
		}
	}
	if (!r->ahead)
		r->ahead = r->wait ? 1 : 4;
	if (r->graph && r->streams > 1) {
		snprintf(why, size,
			 "\"%s\": a graph is launched on one stream: want graph or streams=2, not "
			 "both",
			 text);
		return false;
	}
	return true;
}
