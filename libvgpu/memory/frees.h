/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frees.h - what streams free of a pool. For a pool it is free at once; another stream has it, and
 * the card has it back, only when the card has come to the free and the host has waited for that
 * (cuMemPoolTrimTo; driver 580: to have asked is not enough).
 */
#ifndef VGPU_MEMORY_FREES_H
#define VGPU_MEMORY_FREES_H

#include "../base/table.h"
#include "../base/util.h"
#include "../driver/cuda_abi.h"

struct vgpu_frees {
	/* Stream -> an event behind its last free, and the bytes that it freed since none was known. A
	 * thread takes an entry out for a call that waits if the stream is full. */
	struct vgpu_table in;
	unsigned pending; /* entries, also those that are out */
	bool unknown;     /* there may be others */
};

/* The stream has just freed so many bytes; costs an event in it. */
void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes);
/* So many bytes are to be freed by other streams, at most. */
uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream);
/* What the stream does from now on waits for the frees of the others, so that the driver can give
 * it their memory. Not during a capture. */
void vgpu_frees_before(struct vgpu_frees *f, CUstream stream);
/* Waits for those that the card has come to: the driver knows it then. True: there is no other. Not
 * during a capture. */
bool vgpu_frees_passed(struct vgpu_frees *f);
/* There are none. */
void vgpu_frees_none(struct vgpu_frees *f);

#endif
