/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - takes an input of the fuzzer apart. What is not there reads as 0 and "". */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../libvgpu/check.h"

/* What libFuzzer, and replay.c, call. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MOST_TEXTS 64u

struct input {
	const uint8_t *at;
	size_t left;
	char *text[MOST_TEXTS];
	unsigned texts;
};

static inline uint64_t take(struct input *in, size_t bytes)
{
	uint64_t n = 0;

	bytes = bytes < in->left ? bytes : in->left;
	memcpy(&n, in->at, bytes);
	in->at += bytes;
	in->left -= bytes;
	return n;
}

static inline void take_bytes(struct input *in, void *to, size_t bytes)
{
	memset(to, 0, bytes);
	bytes = bytes < in->left ? bytes : in->left;
	memcpy(to, in->at, bytes);
	in->at += bytes;
	in->left -= bytes;
}

/* Up to a NUL or the end, in memory of just its size, which give_back() frees. */
static inline char *take_text(struct input *in)
{
	size_t n = strnlen((const char *)in->at, in->left);
	char *copy;

	if (in->texts == MOST_TEXTS)
		return in->text[0];
	copy = malloc(n + 1);
	CHECK(copy != NULL);
	memcpy(copy, in->at, n);
	copy[n] = '\0';
	n += n < in->left;
	in->at += n;
	in->left -= n;
	return in->text[in->texts++] = copy;
}

static inline void give_back(struct input *in)
{
	while (in->texts)
		free(in->text[--in->texts]);
}

/* A line for people: one line, no control characters, not too long. */
static inline void check_line(const char *line, size_t most)
{
	CHECK(strnlen(line, most) < most);
	for (; *line; line++)
		CHECK((unsigned char)*line >= ' ' && *line != 0x7f);
}

#endif
