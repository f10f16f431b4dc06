/* SPDX-License-Identifier: Apache-2.0 */
/*
 * old_strtol.h - included before stdlib.h. Headers of glibc 2.38 and later give strtol
 * and its kin names that no older glibc has, because C23 adds numbers such as 0b1.
 */
#ifndef VGPU_OLD_STRTOL_H
#define VGPU_OLD_STRTOL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <features.h>
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
