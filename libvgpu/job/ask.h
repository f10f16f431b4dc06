/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - questions to gresd. */
#ifndef VGPU_JOB_ASK_H
#define VGPU_JOB_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Asks a line in JSON with its newline. The answer, without its newline,
 * is in at most so many bytes with a NUL. False: gresd refuses, does not answer in about
 * that time, or does not run. */
bool vgpu_ask(const char *question, uint64_t within_ns, char *answer, size_t size);
/* Asks which pid this process has outside its PID namespace, and writes it to its slot; 0: it is not
 * known. gresd reads it off the socket's credentials. Only monitors that read the cache need it. May
 * wait for a second or two. */
void vgpu_host_pid(void);

#endif
