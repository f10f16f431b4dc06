/* SPDX-License-Identifier: Apache-2.0 */
/* linear.h - linear and pitched memory. */
#ifndef VGPU_MEMORY_LINEAR_H
#define VGPU_MEMORY_LINEAR_H

#include "../driver/cuda_abi.h"
#include "shared.h"

/* An address that is none of a pool's is freed in a stream: it counts until the card comes to that. */
void vgpu_linear_leaves(CUdeviceptr dptr, CUstream stream);
/* What ended with a context. */
void vgpu_linear_ended(uint64_t owner);
/* A descriptor keeps what has these addresses. */
void vgpu_linear_exported(const struct vgpu_range *range);

#endif
