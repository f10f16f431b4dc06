/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

struct libcuda_calls cu;

int libcuda_load(const char *library, char *why, size_t size)
{
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL), *f;

	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return -1;
	}
	/* POSIX gives dlsym's void pointer the size of a function's. */
#define X(name, params)        \
	f = dlsym(lib, #name); \
	memcpy(&cu.name, &f, sizeof f);
	CALLS(X)
#undef X
	return 0;
}
