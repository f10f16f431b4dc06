/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the few macros of the C tests: a failed check says where and ends
 * the program with status 1; done() prints how many passed. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long checks_passed;

/* By QEMU (tests/arm64), whose kernel is not Linux in all. */
static inline bool emulated(void)
{
	return getenv("VGPU_EMULATED") != NULL;
}

#define CHECK(cond)                                                                \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			exit(1);                                                   \
		}                                                                  \
		__atomic_add_fetch(&checks_passed, 1, __ATOMIC_RELAXED);           \
	} while (0)

#define CHECK_EQ(a, b)                                                                            \
	do {                                                                                      \
		long long a_ = (long long)(a), b_ = (long long)(b);                               \
		if (a_ != b_) {                                                                   \
			fprintf(stderr, "%s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #a, \
				a_, b_);                                                          \
			exit(1);                                                                  \
		}                                                                                 \
		__atomic_add_fetch(&checks_passed, 1, __ATOMIC_RELAXED);                          \
	} while (0)

static inline int done(const char *name)
{
	printf("%s: %lu checks passed\n", name, checks_passed);
	return 0;
}

#endif
