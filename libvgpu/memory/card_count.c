/* SPDX-License-Identifier: Apache-2.0 */
/* card_count.c - see memory.h. */
#include <stdlib.h>
#include <unistd.h>

#include "../driver/real.h"
#include "../job/job.h"
#include "memory.h"

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
