/* SPDX-License-Identifier: Apache-2.0 */
/* tell.h - what the job's user is told, on stderr. */
#ifndef VGPU_JOB_TELL_H
#define VGPU_JOB_TELL_H

#include <stdint.h>

/* Reads the environment, once, when the grant is read. */
void vgpu_tell_settings(void);
/* A refused allocation, of so many bytes or (0) of what no call asked for; at most one line
 * in 30 s. */
void vgpu_tell_oom(int card, uint64_t bytes);
/* Nothing can hold this process back on a card, whose limit may be a hard one. */
void vgpu_tell_ungated(int card);
/* What this process has been given, if the user wants to know. */
void vgpu_tell_grant(void);

#endif
