/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h - memory that others than its allocation keep alive: descriptors, and imports of it. imports.c
 * decides who pays for imports of other processes' memory. */
#ifndef VGPU_MEMORY_SHARED_H
#define VGPU_MEMORY_SHARED_H

#include "../base/table.h"
#include "../driver/cuda_abi.h"

/* The bytes of an exported handle that is no descriptor. */
#define VGPU_EXPORT_DATA 64

/* Exported memory. Its key is the address or handle of the allocation. */
struct vgpu_kept;

/* A descriptor keeps the memory. False: this process has no memory to note that. */
bool vgpu_shared_note(uint64_t key, int fd);
bool vgpu_shared_note_kept(struct vgpu_kept *k, int fd);
/* The memory can be imported by these bytes, which do not keep it. */
bool vgpu_shared_note_data(uint64_t key, const void *data);
/* For vgpu_table_sweep of a table of addresses: a descriptor keeps each entry in the range. */
struct vgpu_range {
	uint64_t begin, end;
	uint64_t base; /* of the allocation that has begin; 0: unknown */
	int fd;
	bool failed;
};
bool vgpu_shared_range(const struct vgpu_item *item, uint64_t range);
/* Without a sweep: true if one entry, at the base, has all of the range. The descriptor keeps it. */
bool vgpu_shared_one(struct vgpu_table *t, struct vgpu_range *range);
static inline bool vgpu_in_range(const struct vgpu_item *item, const struct vgpu_range *r)
{
	return item->key < r->end && item->key + item->size > r->begin;
}

/* An import of an export of this process is one more reference to the same charge. NULL: the memory
 * is another process's, or it is not known whose. */
struct vgpu_kept *vgpu_shared_import(int fd);
struct vgpu_kept *vgpu_shared_import_data(const void *data);
void vgpu_shared_import_again(struct vgpu_kept *k);
void vgpu_shared_unimport(struct vgpu_kept *k);
/* Imported pools and external memory -> a reference, and its end. */
extern struct vgpu_table vgpu_holders;
void vgpu_holder_gone(const struct vgpu_item *item);

/* So many bytes of other processes' memory more, or less: 0, or -ENOMEM if this process has to pay
 * for them and has no room. */
int vgpu_imports_more(int card, uint64_t bytes);
void vgpu_imports_less(int card, uint64_t bytes);
/* Charges the imports that other processes no longer pay for. True: there were some. */
bool vgpu_imports_settle(int card);

/* Before the bytes of a freed allocation are released: if something still keeps the memory, as many
 * are charged until the last reference goes. */
void vgpu_shared_freed(uint64_t key, int card, uint64_t bytes);
/* The same, and releases the bytes. */
void vgpu_shared_release(uint64_t key, int card, uint64_t bytes);
/* Looks for closed descriptors of freed allocations. */
void vgpu_shared_settle(void);
/* The charged bytes that descriptors alone keep. The card counts them for no process. */
uint64_t vgpu_shared_uncounted(int card);
/* After a fork, in the child: it has none. */
void vgpu_shared_in_child(void);

#endif
