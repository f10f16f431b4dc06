/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - the kinds of memory, except pools (pool.h) and shared memory (shared.h). */
#ifndef VGPU_MEMORY_MEMORY_H
#define VGPU_MEMORY_MEMORY_H

#include "shared.h"

/* The driver has taken back what a context of a card held. */
void vgpu_memory_ended(int card, CUdevice dev, uint64_t owner);
/* The watcher's look. */
void vgpu_memory_tick(uint64_t now);

/* ------------------------------------------------------- linear.c: linear and pitched memory */
/* The driver has freed an entry by address, or ended a handle of vmm.c: its charge goes. */
void vgpu_linear_freed(const struct vgpu_item *item);
/* An address is an import of another process's memory, which may end with its context: 0, or -ENOMEM
 * as vgpu_imports_more. */
int vgpu_linear_imported(CUdeviceptr dptr, bool of_context);
/* Releases the charges of memory that ended with the context. */
void vgpu_linear_ended(uint64_t owner);

/* ---------------------------------- managed.c: managed memory, which the card gives in steps */
/* Gives back so many bytes, and the steps that they were in. */
void vgpu_managed_less(int card, uint64_t size);

/* ----------------------------------------------------------------------------------- array.c */
/* Releases the charges of arrays that ended with the context. */
void vgpu_arrays_ended(uint64_t owner);

/* ----------------------------------- vmm.c: exports and imports of the memory of cuMemCreate */
/* A descriptor keeps the memory of a handle, or of all mappings in a range. False, or failed: this
 * process has no memory to note that. */
bool vgpu_vmm_exported(CUmemGenericAllocationHandle handle, int fd);
bool vgpu_vmm_exported_data(CUmemGenericAllocationHandle handle, const void *data);
bool vgpu_vmm_range_one(struct vgpu_range *range); /* as vgpu_shared_one */
void vgpu_vmm_range(struct vgpu_range *range);
/* A new handle is an import: of memory of this process, or of another's where own is NULL. */
void vgpu_vmm_imported(CUmemGenericAllocationHandle handle, struct vgpu_kept *own);

/* --------------------------------------- graph.c: memory that graphs allocate while they run */
/* A graph launch, with the memory that it allocates. */
CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream);
void vgpu_graph_forget(CUgraphExec graph);
/* Sets the charge to the memory of the card's graphs. */
void vgpu_graphs_settle(int card, CUdevice dev);

/* --------------------------------------------- module.c, first_use.c: code and its variables */
/* Returns the charge of all modules, in bytes. */
uint64_t vgpu_modules_charged(int card);
/* Lowers the charge by at most bytes. */
void vgpu_modules_lower(int card, uint64_t bytes);
/* Releases the charges of modules that ended with the context. */
void vgpu_modules_ended(uint64_t owner);

/* Which handles have been used before (first_use.c).
 * A call for a handle (and a name in it, or NULL) in the current context;
 * 0: there is no context. Get the key before the call. */
uint64_t vgpu_use_key(const char *call, const void *handle, const char *name);
/* That call was made before, went well and was noted; lossy. No locks. */
bool vgpu_used(uint64_t key);
void vgpu_use_note(uint64_t key);
/* Handles or contexts have gone: others may get their addresses. After they have. */
void vgpu_uses_forget(void);

/* ----- context_cost.c: memory that no allocation call asks for: contexts, code, local memory */
/* Pools, pitched memory and first launches make a context grow a little. Its charge includes this
 * room from the start. */
#define VGPU_CONTEXT_GROWTH (16ull << 20)

/* Returns the charge of a context; 0: none. */
uint64_t vgpu_context_bytes(int card);
/* Before a context of a card is made: its cost, 0 or -ENOMEM. */
int vgpu_overhead_context(int card);
void vgpu_overhead_context_gone(int card);

/* The charge of our slot without allocations. */
uint64_t vgpu_overhead_charged(int card);
/* By what the card has already given. */
void vgpu_overhead_raise(int card, uint64_t bytes);
/* By at most so many bytes. */
void vgpu_overhead_lower(int card, uint64_t bytes);

/* The card's own count of the memory of this process. Returns false if the driver does
 * not list the process: it is in another PID namespace, or has no context yet. The first call opens
 * NVML. */
bool vgpu_overhead_counted(int card, uint64_t *bytes);
/* The watcher compares the two (compare.c). Without gresd it compares the whole charge, with gresd
 * only the charge of modules. */
void vgpu_overhead_tick(uint64_t now);

/* ---------------------------------------------- told.c: the memory that a process sees */
/* Replaces the driver's free and total of a card by the job's values: total is the limit. Without a
 * limit, or if card is below 0, both stay. */
void vgpu_told(int card, uint64_t *free, uint64_t *total);

#endif
