/* SPDX-License-Identifier: Apache-2.0 */
/* must.h - a call of an API that has to return 0, for the programs of this folder. */
#ifndef QUEUES_MUST_H
#define QUEUES_MUST_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static inline void must(int r, const char *what)
{
	if (!r)
		return;
	fprintf(stderr, "%s: %s: %d\n", program_invocation_short_name, what, r);
	exit(1);
}

#endif
