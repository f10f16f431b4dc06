/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.c - suspends another process's CUDA and brings it back, as NVIDIA's cuda-checkpoint
 * does, with its options.
 *
 *   checkpoint [--libdir DIR] --pid PID --get-state
 *   checkpoint [--libdir DIR] --pid PID --action lock|checkpoint|restore|unlock [--timeout MS]
 *   checkpoint [--libdir DIR] --pid PID --toggle
 *
 * Prints the state by --get-state. Exits with the error of the call that failed.
 */
#include <stdint.h>
#include <stdlib.h>

#include "common.h"

enum state { RUNNING, LOCKED, CHECKPOINTED, FAILED };

struct lock_args {
	unsigned timeout_ms, reserved0;
	uint64_t reserved1[7];
};

static void *cuda;

static int call(const char *what, int pid, void *args)
{
	char name[64];
	int (*found)(int, void *);

	snprintf(name, sizeof name, "cuCheckpointProcess%s", what);
	found = (int (*)(int, void *))dlsym(cuda, name);
	return found ? found(pid, args) : 801;
}

static int toggle(int pid)
{
	enum state state = FAILED;
	int r = call("GetState", pid, &state);

	if (r)
		return r;
	if (state == RUNNING)
		return (r = call("Lock", pid, NULL)) ? r : call("Checkpoint", pid, NULL);
	return (r = call("Restore", pid, NULL)) ? r : call("Unlock", pid, NULL);
}

static int has(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"running", "locked", "checkpointed", "failed"};
	static const char *const calls[] = {"lock",    "Lock",    "checkpoint", "Checkpoint",
					    "restore", "Restore", "unlock",     "Unlock"};
	const char *action = opt(argc, argv, "--action", "");
	int pid = atoi(opt(argc, argv, "--pid", "0")), r;
	struct lock_args lock = {.timeout_ms = (unsigned)atoi(opt(argc, argv, "--timeout", "0"))};
	int (*init)(unsigned);
	enum state state;

	cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	init = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
	if (!init || (r = init(0)) != 0) {
		fprintf(stderr, "checkpoint: no driver\n");
		return 255;
	}
	if (has(argc, argv, "--toggle"))
		return toggle(pid) & 0xff;
	if (has(argc, argv, "--get-state")) {
		r = call("GetState", pid, &state);
		if (!r && state <= FAILED)
			puts(names[state]);
		return r & 0xff;
	}
	for (int i = 0; i < 8; i += 2)
		if (strcmp(action, calls[i]) == 0)
			return call(calls[i + 1], pid, i ? NULL : &lock) & 0xff;
	fprintf(stderr, "checkpoint: want --get-state, --toggle or --action\n");
	return 255;
}
