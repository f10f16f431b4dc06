/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - limits from environment variables, for use without gresd
 * (config.c): the variables that HAMi-core reads, parsed strictly. Never looked
 * at inside a job that has a grant.
 *
 *   CUDA_DEVICE_MEMORY_LIMIT     bytes, or a whole number and K, M, G, T
 *   CUDA_DEVICE_SM_LIMIT         1 to 100; 0 is HAMi's word for no limit
 *   either with _<i>             the same for the i-th CUDA device alone
 *   CUDA_OVERSUBSCRIBE           "true", "1": a memory limit may be above what the
 *                                card has; the rest is paged. "false", "0": not
 *   GPU_CORE_UTILIZATION_POLICY  "disable": compute is counted, never held back
 *   CUDA_TASK_PRIORITY           "0": high
 *
 * An empty variable is one that is not set. A value that cannot be understood
 * was meant as a limit, so it gives the smallest: 1 byte, 1 %, nothing paged.
 */
#ifndef VGPU_CONFIG_H
#define VGPU_CONFIG_H

#include <stdbool.h>

#include "region.h"

/* The limits given to a value that cannot be understood. */
#define VGPU_SMALLEST_MEM 1u
#define VGPU_SMALLEST_CORES 1u
/* mem_physical of a grant from the environment until the card's size is known. */
#define VGPU_MEM_OF_CARD UINT64_MAX

/* Where variables are found, and who is told of a value that is not understood. */
struct vgpu_env {
	/* The value, or NULL. It must stay as it is until the grant is made. */
	const char *(*get)(struct vgpu_env *env, const char *name);
	/* want: what would have been right, and what is done instead, in words. */
	void (*bad)(struct vgpu_env *env, const char *name, const char *value, const char *want);
};

/* Bytes of "4096", "8G", "512m", "2TiB": the form that gresd/gpu reads too, and
 * above 0. False, with *bytes as it was, for anything else. */
bool vgpu_parse_size(const char *text, uint64_t *bytes);

/* Fills a grant of VGPU_MAX_CARDS cards; the user and the schedule are the
 * caller's to add. False when no limit is set. */
bool vgpu_grant_from(struct vgpu_grant *g, struct vgpu_env *env);

#endif
