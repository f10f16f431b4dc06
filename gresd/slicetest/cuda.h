/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h - work that keeps a card busy, without linking against libcuda. */
#ifndef GRESD_SLICETEST_CUDA_H
#define GRESD_SLICETEST_CUDA_H

#include <stddef.h>

/* Loads the library, makes a context on the first card that it shows, and launches kernels
 * until standard input is closed. It returns when the last has ended: 0, or -1 with the
 * reason in why. */
int slicetest_work(const char *library, char *why, size_t size);

#endif
