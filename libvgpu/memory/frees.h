/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frees.h - what streams free of a pool. For a pool it is free at once; another stream has it, and
 * the card has it back, only when the card has come to the free and the host has waited for that
 * (cuMemPoolTrimTo; driver 580: to have asked is not enough).
 */
#ifndef VGPU_MEMORY_FREES_H
#define VGPU_MEMORY_FREES_H

#include "../base/util.h"
#include "../driver/cuda_abi.h"

#define VGPU_FREES 32

struct vgpu_frees {
	/* An event behind the last free of each stream. Under a lock of frees.c. */
	struct {
		uint64_t key;   /* 0: free entry */
		CUevent event;  /* NULL: a thread uses it just now */
		uint64_t bytes; /* freed there since none was known, at most */
	} in[VGPU_FREES];
	bool unknown; /* there may be others */
};

/* The stream has just freed so many bytes; costs an event in it. */
void vgpu_frees_mark(struct vgpu_frees *f, CUstream stream, uint64_t bytes);
/* Some stream has, and it is not asked which. */
void vgpu_frees_unknown(struct vgpu_frees *f);
/* So many bytes are to be freed by other streams, at most. */
uint64_t vgpu_frees_elsewhere(struct vgpu_frees *f, CUstream stream);
/* What the stream does from now on waits for the frees of the others, so that the driver can give
 * it their memory. Not during a capture. */
void vgpu_frees_before(struct vgpu_frees *f, CUstream stream);
/* Waits for those that the card has come to: the driver knows it then. True: no other is known. Not
 * during a capture. */
bool vgpu_frees_passed(struct vgpu_frees *f);
/* There may be others. */
static inline bool vgpu_frees_hide(const struct vgpu_frees *f)
{
	return __atomic_load_n(&f->unknown, __ATOMIC_SEQ_CST);
}
/* There are none. */
void vgpu_frees_none(struct vgpu_frees *f);
/* After a fork, in the child: unlocked. */
void vgpu_frees_in_child(void);

#endif
