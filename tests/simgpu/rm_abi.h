/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm_abi.h - what the two halves of the simulated driver, the one that programs load
 * and the one behind the device files, have in common of the resource manager.
 *
 * Numbers and layouts: NVIDIA open-gpu-kernel-modules, nv_escape.h, nvos.h (NVOS00, NVOS54,
 * NVOS64), nvstatuscodes.h.
 */
#ifndef SIMGPU_RM_ABI_H
#define SIMGPU_RM_ABI_H

#include <stdint.h>

#define ESC_FREE 0x29u
#define ESC_CONTROL 0x2Au
#define ESC_ALLOC 0x2Bu
#define ESC_VID_HEAP 0x4Au
#define ESC_MAP 0x4Eu

#define NV_OK 0x0u
#define NV_INSUFFICIENT_RESOURCES 0x1Au
#define NV_INSUFFICIENT_PERMISSIONS 0x1Bu
#define NV_INVALID_ARGUMENT 0x1Fu
#define NV_INVALID_CLASS 0x22u
#define NV_INVALID_CLIENT 0x23u
#define NV_INVALID_COMMAND 0x24u
#define NV_INVALID_OBJECT_HANDLE 0x33u
#define NV_INVALID_OBJECT_NEW 0x34u
#define NV_INVALID_OBJECT_PARENT 0x36u
#define NV_INVALID_PARAM_STRUCT 0x3Au
#define NV_NO_MEMORY 0x51u
#define NV_NOT_SUPPORTED 0x56u
#define NV_OBJECT_NOT_FOUND 0x57u
#define NV_BAD_STATE 0xffffu

struct rm_alloc64 { /* the newer form */
	uint32_t root, parent, object, cls;
	uint64_t params, rights;
	uint32_t size, flags, status, pad;
};

struct rm_free {
	uint32_t root, parent, object, status;
};

struct rm_control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t size, status;
};

#endif
