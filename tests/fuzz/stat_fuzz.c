/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stat_fuzz.c - who owns a slot, by /proc/<pid>/stat, in which a process writes its
 * own name. No name makes a process look older, younger or dead.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "input.h"

static const char *text;
static size_t length;

static int fuzz_open(const char *path, int flags)
{
	(void)path;
	(void)flags;
	return 3;
}

static ssize_t fuzz_read(int fd, void *to, size_t size)
{
	CHECK(fd == 3);
	size = size < length ? size : length;
	memcpy(to, text, size);
	return (ssize_t)size;
}

static int fuzz_close(int fd)
{
	CHECK(fd == 3);
	return 0;
}

#define open fuzz_open
#define read fuzz_read
#define close fuzz_close
#include "../../libvgpu/region_process.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.at = data, .left = size};
	unsigned raw = (unsigned)take(&in, 1);
	unsigned char state = (unsigned char)take(&in, 1);
	unsigned threads = (unsigned)take(&in, 1);
	uint64_t start = take(&in, 8), got;
	char line[512];
	int n;

	if (raw & 1) {
		text = (const char *)in.at;
		length = in.left;
		vgpu_start_time(1);
		return 0;
	}
	state = (unsigned char)('A' + state % 26);
	n = snprintf(line, sizeof line,
		     "77 (%.64s) %c 5 77 77 0 -1 4194304 1 1 0 0 0 0 0 0 20 0 %u 0 %llu 1 1 0\n",
		     take_text(&in), state, threads, (unsigned long long)start);
	text = line;
	length = (size_t)n;
	got = vgpu_start_time(77);
	CHECK(got == (state == 'Z' && threads <= 1 ? 0 : start));
	give_back(&in);
	return 0;
}
