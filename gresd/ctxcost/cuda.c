/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.c - see cuda.h. libcuda is loaded by name, because gresd must also start
 * on a node whose driver is missing, and only a child of it ever comes here.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct uuid {
	unsigned char bytes[16];
};

struct driver {
	int (*init)(unsigned flags);
	int (*count)(int *n);
	int (*get)(int *device, int ordinal);
	int (*uuid)(struct uuid *uuid, int device);
	int (*retain)(void **context, int device);
};

static int fail(char *why, size_t size, const char *what, int code)
{
	snprintf(why, size, "%s: CUDA error %d", what, code);
	return -1;
}

/* POSIX gives dlsym's void pointer the size of a function's. */
static int bind(void *lib, const char *name, void *into, char *why, size_t size)
{
	void *f = dlsym(lib, name);

	if (!f) {
		snprintf(why, size, "no function %s", name);
		return -1;
	}
	memcpy(into, &f, sizeof f);
	return 0;
}

static int load(const char *library, struct driver *d, char *why, size_t size)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	if (bind(lib, "cuInit", &d->init, why, size) ||
	    bind(lib, "cuDeviceGetCount", &d->count, why, size) ||
	    bind(lib, "cuDeviceGet", &d->get, why, size) ||
	    bind(lib, "cuDevicePrimaryCtxRetain", &d->retain, why, size))
		return -1;
	/* Drivers before 11.4 have only the older name, which does the same where
	 * there is no MIG. */
	if (bind(lib, "cuDeviceGetUuid_v2", &d->uuid, why, size) == 0)
		return 0;
	return bind(lib, "cuDeviceGetUuid", &d->uuid, why, size);
}

static void format(const struct uuid *u, char text[41])
{
	char *p = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
			     u->bytes[i]);
}

int probe_make_context(const char *library, const char *uuid, char *why, size_t size)
{
	struct driver d;
	int r, n, device;
	void *context;

	if (load(library, &d, why, size))
		return -1;
	if ((r = d.init(0)))
		return fail(why, size, "cuInit", r);
	if ((r = d.count(&n)))
		return fail(why, size, "cuDeviceGetCount", r);
	for (int i = 0; i < n; i++) {
		struct uuid have;
		char text[41];

		if ((r = d.get(&device, i)) || (r = d.uuid(&have, device)))
			return fail(why, size, "cuDeviceGetUuid", r);
		format(&have, text);
		if (strcmp(text + 4, uuid + 4) != 0) /* CUDA does not tell GPU- from MIG- */
			continue;
		if ((r = d.retain(&context, device)))
			return fail(why, size, "cuDevicePrimaryCtxRetain", r);
		return 0;
	}
	snprintf(why, size, "CUDA has %d cards and not this one", n);
	return -1;
}
