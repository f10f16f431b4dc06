/* SPDX-License-Identifier: Apache-2.0 */
/* context_cost.h - memory that no allocation call asks for: contexts, code, local memory. */
#ifndef VGPU_MEMORY_CONTEXT_COST_H
#define VGPU_MEMORY_CONTEXT_COST_H

#include <stdbool.h>
#include <stdint.h>

/* A context grows a little with what a program does (pools, pitched memory, first
 * launches): room for that is charged from the start and kept. */
#define VGPU_CONTEXT_GROWTH (16ull << 20)

/* What a context is charged; 0: nothing. */
uint64_t vgpu_context_bytes(int card);
/* Before a context of a card is made: its cost, 0 or -ENOMEM. */
int vgpu_overhead_context(int card);
void vgpu_overhead_context_gone(int card);

/* What is charged on our slot beside allocations. */
uint64_t vgpu_overhead_charged(int card);
/* By what the card has already given. */
void vgpu_overhead_raise(int card, uint64_t bytes);
/* By at most so many bytes. */
void vgpu_overhead_lower(int card, uint64_t bytes);

/* The card's own count of the memory of this process (card_count.c). Returns false if the driver does
 * not list the process: it is in another PID namespace, or has no context yet. The first call opens
 * NVML. */
bool vgpu_overhead_counted(int card, uint64_t *bytes);
/* The watcher compares the two (compare.c): without gresd all that is charged, with it only what
 * modules were charged. */
void vgpu_overhead_tick(uint64_t now);

#endif
