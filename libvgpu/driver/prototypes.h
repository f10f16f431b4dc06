/* SPDX-License-Identifier: Apache-2.0 */
/* prototypes.h - of the hooks. */
#ifndef VGPU_DRIVER_PROTOTYPES_H
#define VGPU_DRIVER_PROTOTYPES_H

#include "../base/util.h"
#include "cuda_abi.h"

#define CU(name, params) VGPU_EXPORT CUresult name params;
#define NV(name, params) VGPU_EXPORT nvmlReturn_t name params;
#define CU_USE(name, params)
#define NV_USE(name, params)
#include "hooks.def"

#endif
