/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - a question to gresd. */
#ifndef VGPU_JOB_ASK_H
#define VGPU_JOB_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Asks a line in JSON with its newline. The answer, without its newline,
 * is in at most so many bytes with a NUL; false when gresd refuses or does not answer
 * in that time, at once where there is none. */
bool vgpu_ask(const char *question, uint64_t within_ns, char *answer, size_t size);

#endif
