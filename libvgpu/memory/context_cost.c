/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_cost.c - see memory.h. A context's cost is charged before it is made; afterwards
 * the card's own count of this process corrects the charge. Inside a job gresd makes the
 * comparison for all processes (mem_outside in the grant); without gresd this process's watcher
 * makes it, on its own slot (compare.c).
 */
#include <stdlib.h>
#include <unistd.h>

#include "account.h"
#include "memory.h"

uint64_t vgpu_context_bytes(int card)
{
	uint64_t bytes = vgpu_state.grant->card[card].mem_overhead;

	return bytes ? bytes + VGPU_CONTEXT_GROWTH : 0;
}

int vgpu_overhead_context(int card)
{
	uint64_t bytes = vgpu_context_bytes(card);

	if (bytes == 0)
		return 0;
	vgpu_mem_begin();
	int r = vgpu_charge(card, bytes);
	if (r == 0)
		ADD(&vgpu_my(card)->mem_context, bytes);
	vgpu_mem_end();
	return r;
}

void vgpu_overhead_lower(int card, uint64_t bytes)
{
	vgpu_charge_less(card, &vgpu_my(card)->mem_context, bytes);
}

void vgpu_overhead_context_gone(int card)
{
	vgpu_mem_begin();
	vgpu_overhead_lower(card, vgpu_context_bytes(card));
	vgpu_mem_end();
}

uint64_t vgpu_overhead_charged(int card)
{
	return LOAD(&vgpu_my(card)->mem_context);
}

void vgpu_overhead_raise(int card, uint64_t bytes)
{
	ADD(&vgpu_my(card)->mem_context, bytes);
	vgpu_charge_forced(card, bytes);
}

/* ------------------------------------------------------- the card's own count of this process */
#define MAX_PROCESSES 256
/* If NVML cannot be opened, the next try is after this time. */
#define NVML_AGAIN_NS 30000000000u
/* The card takes more memory for a process than it counts as the process's own (9 MiB more on an H200
 * with driver 580). */
#define UNCOUNTED (10ull << 20)

/* NULL: NVML does not have the card. Several threads may ask at once: they find the same. */
static nvmlDevice_t nvml_handle(int card)
{
	static nvmlDevice_t handle[VGPU_MAX_CARDS];
	static uint64_t tried[VGPU_MAX_CARDS];
	nvmlDevice_t found = LOAD(&handle[card]);
	uint64_t last = LOAD(&tried[card]), now = vgpu_now();

	if (found || (last && now - last < NVML_AGAIN_NS))
		return found;
	STORE(&tried[card], now);
	vgpu_need_nvml();
	if (!vgpu_real.nvmlInit_v2 || vgpu_real.nvmlInit_v2() != NVML_SUCCESS ||
	    !vgpu_real.nvmlDeviceGetHandleByUUID ||
	    !vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3 ||
	    vgpu_real.nvmlDeviceGetHandleByUUID(vgpu_state.grant->card[card].uuid, &found) !=
		    NVML_SUCCESS)
		return NULL;
	STORE(&handle[card], found);
	return found;
}

bool vgpu_overhead_counted(int card, uint64_t *bytes)
{
	VGPU_NO_CANCEL;
	unsigned n = MAX_PROCESSES, pid = (unsigned)getpid();
	nvmlDevice_t device = nvml_handle(card);
	bool found = false;

	nvmlProcessInfo_t *info = device ? calloc(n, sizeof *info) : NULL;
	if (info &&
	    vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3(device, &n, info) == NVML_SUCCESS) {
		for (unsigned i = 0; i < n && i < MAX_PROCESSES && !found; i++) {
			found = info[i].pid == pid && info[i].usedGpuMemory != ~0ull;
			*bytes = info[i].usedGpuMemory + UNCOUNTED;
		}
	}
	free(info);
	return found;
}
