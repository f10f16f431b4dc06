/* SPDX-License-Identifier: Apache-2.0 */
/* total.c - what a program is told of a card's memory; see cuda.h. */
#include "cuda.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*total_fn)(size_t *bytes, int device);

static void *find(void *lib, const char *name)
{
	return lib ? dlsym(lib, name) : NULL;
}

/* POSIX gives dlsym's void pointer the size of a function's. */
#define AS(fn, pointer) memcpy(&(fn), &(pointer), sizeof(pointer))

int probe_total_memory(const char *library, unsigned long long *by_name,
		       unsigned long long *by_address, char *why, size_t size)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	void *init_at = find(lib, "cuInit"), *get_at = find(lib, "cuDeviceGet");
	void *total_at = find(lib, "cuDeviceTotalMem_v2"), *ask_at = find(lib, "cuGetProcAddress");
	int (*init)(unsigned flags);
	int (*get)(int *device, int ordinal);
	int (*ask)(const char *name, void **fn, int version, uint64_t flags);
	total_fn total;
	size_t bytes = 0;
	int r, device;

	if (!lib || !init_at || !get_at || !total_at) {
		snprintf(why, size, "%s", lib ? "a function is missing" : dlerror());
		return -1;
	}
	AS(init, init_at);
	AS(get, get_at);
	AS(total, total_at);
	r = init(0);
	if (r == 0)
		r = get(&device, 0);
	if (r == 0)
		r = total(&bytes, device);
	if (r) {
		snprintf(why, size, "CUDA error %d", r);
		return -1;
	}
	*by_name = bytes;
	*by_address = 0;
	/* How the CUDA runtime finds functions; drivers before 11.3 have no such way. */
	if (ask_at) {
		void *at = NULL;

		AS(ask, ask_at);
		if (ask("cuDeviceTotalMem", &at, 3020, 0) == 0 && at) {
			AS(total, at);
			if (total(&bytes, device) == 0)
				*by_address = bytes;
		}
	}
	return 0;
}
