// SPDX-License-Identifier: Apache-2.0
/*
 * own.c - what a program takes of a card without libcuda, as OpenCL, Vulkan and OpenGL do: memory,
 * and channel groups, each of which is a context of the model.
 *
 * Numbers and layouts: NVIDIA open-gpu-kernel-modules, nvos.h (NVOS32), cla06c.h, ctrl2080fb.h.
 */
#define _GNU_SOURCE
#include "local.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VID_HEAP_ALLOC_SIZE 2u
#define ATTR_LOCATION (3u << 25)
#define FLAG_VIRTUAL 0x80000u
#define ROUND (2ull << 20)
#define FB_RAM_SIZE 0x7u
#define FB_TOTAL_RAM_SIZE 0x8u
#define FB_HEAP_FREE 0x16u

/* This process in the model, from its first memory or group on. */
static int own_proc(struct sim_state *st)
{
	static int proc = -1;
	static pid_t pid;

	if (pid != getpid()) {
		proc = sim_proc_add(st);
		pid = getpid();
	}
	return proc;
}

uint32_t own_memory(struct sim_state *st, struct object *o, uint64_t *size)
{
	uint64_t bytes = (*size + ROUND - 1) / ROUND * ROUND;
	uint32_t status = NV_NO_MEMORY;
	int proc;

	sim_lock(st);
	proc = own_proc(st);
	if (bytes && proc >= 0 && sim_mem_add(st, (uint32_t)proc, o->card, bytes) == 0) {
		o->taken = *size = bytes;
		status = NV_OK;
	}
	sim_unlock(st);
	return status;
}

uint32_t own_group(struct sim_state *st, struct object *o)
{
	int proc, ctx = -1;

	sim_lock(st);
	proc = own_proc(st);
	if (proc >= 0)
		ctx = sim_ctx_add(st, (uint32_t)proc, o->card);
	o->context = ctx + 1;
	sim_unlock(st);
	return ctx < 0 ? NV_NO_MEMORY : NV_OK;
}

void own_free(struct sim_state *st, struct object *o)
{
	if (!o->taken && !o->context)
		return;
	sim_lock(st);
	if (o->taken)
		sim_mem_sub(st, (uint32_t)own_proc(st), o->card, o->taken);
	if (o->context)
		sim_ctx_drop(st, (uint32_t)o->context - 1);
	sim_unlock(st);
}

uint32_t own_slice(struct sim_state *st, struct object *o, bool set, uint64_t *us)
{
	uint32_t status = NV_OK, ctx = (uint32_t)o->context - 1;

	sim_lock(st);
	sim_advance_all(st);
	if (!set)
		*us = st->ctx[ctx].slice_us;
	else if (sim_slices_refused(st))
		status = NV_INSUFFICIENT_PERMISSIONS;
	else
		sim_set_slice(st, ctx, *us);
	sim_unlock(st);
	return status;
}

uint32_t own_fb_info(struct sim_state *st, const struct object *o, struct fb_info_params *p)
{
	uint64_t all = st->card[o->card].conf.memory, used;

	if (p->n > FB_INFO_MAX)
		return NV_INVALID_ARGUMENT;
	sim_lock(st);
	used = sim_mem_used(st, o->card);
	sim_unlock(st);
	for (uint32_t i = 0; i < p->n; i++) {
		switch (p->entry[i].index) {
		case FB_RAM_SIZE:
		case FB_TOTAL_RAM_SIZE:
			p->entry[i].kib = (uint32_t)(all >> 10);
			break;
		case FB_HEAP_FREE:
			p->entry[i].kib = (uint32_t)((all - used) >> 10);
			break;
		default:
			return NV_NOT_SUPPORTED;
		}
	}
	return NV_OK;
}

/* This driver reads a UUID only as text. */
uint32_t own_uuid_info(const struct sim_state *st, struct uuid_info_params *p)
{
	if (p->flags)
		return NV_NOT_SUPPORTED;
	for (uint32_t i = 0; i < st->ngpus; i++) {
		if (strncmp(p->uuid, st->card[i].conf.uuid, sizeof p->uuid) != 0)
			continue;
		p->device = i;
		p->subdevice = 0;
		return NV_OK;
	}
	return NV_OBJECT_NOT_FOUND;
}

/* The older way to ask for memory: which kind it is, is said by where it is to be. */
bool own_vid_heap(const struct rm_vid_heap *h, uint32_t *cls)
{
	if (h->function != VID_HEAP_ALLOC_SIZE || h->flags & FLAG_VIRTUAL ||
	    h->attr & ATTR_LOCATION)
		return false;
	*cls = CLASS_LOCAL_USER;
	return true;
}
