/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release.h - the steps of a free. The entry leaves its table first: once the driver has freed the
 * memory, another thread can get the same address or handle.
 */
#ifndef VGPU_MEMORY_RELEASE_H
#define VGPU_MEMORY_RELEASE_H

#include "../base/table.h"
#include "../driver/cuda_abi.h"
#include "../job/job.h"
#include "account.h"

/* Before and after the driver's call: gone releases the charge of each entry. If the driver fails, the
 * entries go back. */
static inline struct vgpu_item *vgpu_freeing(struct vgpu_table *t, uint64_t key)
{
	vgpu_mem_begin();
	return vgpu_state.grant ? vgpu_table_detach(t, key) : NULL;
}

static inline void vgpu_freed(struct vgpu_table *t, struct vgpu_item *list, CUresult r,
			      void (*gone)(const struct vgpu_item *))
{
	if (r == CUDA_SUCCESS)
		vgpu_table_drop(t, list, gone);
	else if (list)
		vgpu_table_attach(t, list);
	vgpu_mem_end();
}

/* Both of them around a call. */
#define VGPU_FREE(table, key, call, gone)                                                  \
	({                                                                                 \
		struct vgpu_item *list_ = vgpu_freeing(table, (uint64_t)(uintptr_t)(key)); \
		CUresult r_ = (call);                                                      \
                                                                                           \
		vgpu_freed(table, list_, r_, gone);                                        \
		r_;                                                                        \
	})

/* The same for one reference of several. */
static inline bool vgpu_unref_begin(struct vgpu_table *t, uint64_t key, struct vgpu_item *item)
{
	vgpu_mem_begin();
	return vgpu_state.grant && vgpu_table_ref(t, key, -1, item);
}

static inline void vgpu_unref_end(struct vgpu_table *t, struct vgpu_item *item, CUresult r,
				  void (*gone)(const struct vgpu_item *))
{
	if (r == CUDA_SUCCESS && item->refs == 0)
		gone(item);
	else if (r != CUDA_SUCCESS && item->refs++ == 0)
		vgpu_table_put(t, item);
	else if (r != CUDA_SUCCESS)
		vgpu_table_ref(t, item->key, 1, item);
}

#define VGPU_UNREF(table, key, call, gone)                            \
	({                                                            \
		struct vgpu_item item_;                               \
		bool known_ = vgpu_unref_begin(table, (key), &item_); \
		CUresult r_ = (call);                                 \
                                                                      \
		if (known_)                                           \
			vgpu_unref_end(table, &item_, r_, gone);      \
		vgpu_mem_end();                                       \
		r_;                                                   \
	})

#endif
