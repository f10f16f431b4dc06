/* SPDX-License-Identifier: Apache-2.0 */
/* typed.h - fast calls of the driver: the compiler knows their types, and each finds its function once. */
#ifndef STRESS_TYPED_H
#define STRESS_TYPED_H

#include <stdlib.h>

#include "../../simgpu/cuda_abi.h"
#include "common.h"

static void *cuda; /* the driver's library */

static inline void ok(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "%s: error %d\n", what, rc);
	exit(1);
}

/* Ends the program if the call fails. */
#define CALL(name, ...)                                    \
	do {                                               \
		static __typeof__(name) *call;             \
		if (!call && !(call = dlsym(cuda, #name))) \
			ok(-1, #name);                     \
		ok((int)call(__VA_ARGS__), #name);         \
	} while (0)

#endif
