/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release.h - the steps of a free. The entry leaves its table first: once the driver has freed the
 * memory, another thread can get the same address or handle.
 */
#ifndef VGPU_MEMORY_RELEASE_H
#define VGPU_MEMORY_RELEASE_H

#include "account.h"

/* What the program holds by address, also of pools: linear.c frees it. */
extern struct vgpu_table vgpu_addresses;
/* The kinds of its entries, and of handles in vmm.c. */
enum {
	VGPU_LINEAR,
	VGPU_OF_POOL, /* other: the pool */
	VGPU_MANAGED, /* charged in steps */
	VGPU_PAGED,   /* beyond the physical share: charged as it is */
	VGPU_IMPORT,  /* memory of another process */
	VGPU_OWN      /* an import of this process's own memory; other: what keeps that */
};

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
	if (list && r == CUDA_SUCCESS)
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
static inline CUresult vgpu_unref(struct vgpu_table *t, unsigned long long key,
				  CUresult (*real)(unsigned long long),
				  void (*gone)(const struct vgpu_item *))
{
	struct vgpu_item item;
	CUresult r;
	bool known;

	vgpu_mem_begin();
	known = vgpu_state.grant && vgpu_table_ref(t, key, -1, &item);
	r = real(key);
	if (known && r == CUDA_SUCCESS && item.refs == 0)
		gone(&item);
	else if (known && r != CUDA_SUCCESS && item.refs++ == 0)
		vgpu_table_put(t, &item);
	else if (known && r != CUDA_SUCCESS)
		vgpu_table_ref(t, key, 1, &item);
	vgpu_mem_end();
	return r;
}

#endif
