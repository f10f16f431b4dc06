/* SPDX-License-Identifier: Apache-2.0 */
/* env.h - limits from HAMi-style environment variables, for use without gresd. */
#ifndef VGPU_JOB_ENV_H
#define VGPU_JOB_ENV_H

#include "../config.h"

/* The grant that they make. Its cards get their UUIDs when CUDA tells them. */
extern struct vgpu_grant vgpu_env_grant;
/* The limits of each CUDA ordinal. The grant has them at the entry of the ordinal's card in the cache. */
extern struct vgpu_grant_card vgpu_env_limits[VGPU_MAX_CARDS];

/* False when none is set. A value that cannot be understood gives the strictest limit,
 * and a line on stderr. With no arbiter each process asks for its share of a fixed period,
 * which divides the card by weight among those that do the same. */
bool vgpu_grant_from_env(struct vgpu_grant *g);

#endif
