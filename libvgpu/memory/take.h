/* SPDX-License-Identifier: Apache-2.0 */
/* take.h - the steps of an allocation. */
#ifndef VGPU_MEMORY_TAKE_H
#define VGPU_MEMORY_TAKE_H

#include "../base/table.h"
#include "account.h"
#include "owner.h"

/* Announces the bytes before the driver is asked: 0, or -ENOMEM when they do not fit. After the
 * driver's answer vgpu_mem_done() follows. */
int vgpu_mem_take(int card, uint64_t bytes);

/* How a hook that allocates ends: it charges the bytes, calls the driver, and adds an entry with these
 * fields to the table. on is the card; below 0: none is charged. */
#define VGPU_ALLOC(table, on, bytes, call, ...)                                                \
	do {                                                                                   \
		int card_ = (on);                                                              \
		uint64_t bytes_;                                                               \
		CUresult r_;                                                                   \
                                                                                               \
		if (card_ < 0)                                                                 \
			return call;                                                           \
		bytes_ = (bytes);                                                              \
		if (vgpu_mem_take(card_, bytes_))                                              \
			return vgpu_oom(card_, bytes_);                                        \
		r_ = call;                                                                     \
		if (r_ == CUDA_SUCCESS) /* without memory for it: stays charged */             \
			vgpu_table_put(table,                                                  \
				       &(struct vgpu_item){.card = card_,                      \
							   .owner = vgpu_context_owner(card_), \
							   __VA_ARGS__});                      \
		return vgpu_mem_done(card_, bytes_, r_);                                       \
	} while (0)

#endif
