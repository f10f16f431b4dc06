/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml_processes.c - the processes of a card: on a card of the job, only the
 * job's own are listed. Their names and memory are nobody else's business, and
 * on a card of its own a job would not see others either.
 */
#include <stdlib.h>
#include <string.h>

#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"

#define MAX_PROCESSES 1024u

static bool of_job(unsigned pid)
{
	const struct vgpu_cache *c = &vgpu_state.cache;
	uint32_t count = vgpu_slots_in_use(c);

	for (uint32_t i = 0; i < count; i++)
		if (__atomic_load_n(&c->slots[i].owner, __ATOMIC_RELAXED) &&
		    (c->slots[i].pid == pid ||
		     __atomic_load_n(&c->slots[i].host_pid, __ATOMIC_RELAXED) == pid))
			return true;
	return false;
}

/* Every version: the entries differ in size, the pid comes first in all. The
 * whole list is asked for, filtered, and handed out by NVML's own rules. */
static nvmlReturn_t filtered(nvmlReturn_t (*ask)(void *real, nvmlDevice_t, unsigned *, void *),
			     void *real, nvmlDevice_t device, unsigned *n, void *infos, size_t size)
{
	unsigned room, have = MAX_PROCESSES, kept = 0;
	nvmlReturn_t r;
	char *all;

	if (!n || vgpu_card_of_nvml(device) < 0)
		return ask(real, device, n, infos);
	all = calloc(MAX_PROCESSES, size);
	if (!all)
		return ask(real, device, n, infos);
	r = ask(real, device, &have, all);
	for (unsigned i = 0; r == NVML_SUCCESS && i < have; i++) {
		unsigned pid;

		memcpy(&pid, all + i * size, sizeof pid);
		if (of_job(pid))
			memmove(all + kept++ * size, all + i * size, size);
	}
	if (r == NVML_SUCCESS) {
		room = *n;
		*n = kept;
		if (kept > room || (kept && !infos))
			r = NVML_ERROR_INSUFFICIENT_SIZE;
		else if (kept)
			memcpy(infos, all, kept * size);
	}
	free(all);
	return r;
}

#define LIST(name, type)                                                                         \
	static nvmlReturn_t ask_##name(void *real, nvmlDevice_t device, unsigned *n, void *to)   \
	{                                                                                        \
		nvmlReturn_t (*f)(nvmlDevice_t, unsigned *, type *);                             \
                                                                                                 \
		memcpy(&f, &real, sizeof f);                                                     \
		return f(device, n, to);                                                         \
	}                                                                                        \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *n, type *infos)                         \
	{                                                                                        \
		vgpu_need_nvml();                                                                \
		if (!vgpu_real.name)                                                             \
			return vgpu_real.nvmlDeviceGetMemoryInfo ? NVML_ERROR_FUNCTION_NOT_FOUND \
								 : NVML_ERROR_LIBRARY_NOT_FOUND; \
		return filtered(ask_##name, (void *)vgpu_real.name, device, n, infos,            \
				sizeof *infos);                                                  \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* The callers of these bring room for every process of the card: what is not the
 * job's is taken out of it afterwards. Returns how many are left. */
#define KEEP_OWN(array, n)                                       \
	__extension__({                                          \
		unsigned kept_ = 0;                              \
                                                                 \
		for (unsigned i_ = 0; (array) && i_ < (n); i_++) \
			if (of_job((array)[i_].pid))             \
				(array)[kept_++] = (array)[i_];  \
		kept_;                                           \
	})

#define NEED(name)                                                                               \
	do {                                                                                     \
		vgpu_need_nvml();                                                                \
		if (!vgpu_real.name)                                                             \
			return vgpu_real.nvmlDeviceGetMemoryInfo ? NVML_ERROR_FUNCTION_NOT_FOUND \
								 : NVML_ERROR_LIBRARY_NOT_FOUND; \
	} while (0)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *samples, unsigned *n,
					     unsigned long long since)
{
	nvmlReturn_t r;

	NEED(nvmlDeviceGetProcessUtilization);
	r = vgpu_real.nvmlDeviceGetProcessUtilization(device, samples, n, since);
	if (r == NVML_SUCCESS && samples && n && vgpu_card_of_nvml(device) >= 0)
		*n = KEEP_OWN(samples, *n);
	return r;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
						   nvmlProcessesUtilizationInfo_t *infos)
{
	nvmlReturn_t r;

	NEED(nvmlDeviceGetProcessesUtilizationInfo);
	r = vgpu_real.nvmlDeviceGetProcessesUtilizationInfo(device, infos);
	if (r == NVML_SUCCESS && infos->procUtilArray && vgpu_card_of_nvml(device) >= 0)
		infos->processSamplesCount =
			KEEP_OWN(infos->procUtilArray, infos->processSamplesCount);
	return r;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
						   nvmlProcessDetailList_t *list)
{
	nvmlReturn_t r;

	NEED(nvmlDeviceGetRunningProcessDetailList);
	r = vgpu_real.nvmlDeviceGetRunningProcessDetailList(device, list);
	if (r == NVML_SUCCESS && list->procArray && vgpu_card_of_nvml(device) >= 0)
		list->numProcArrayEntries = KEEP_OWN(list->procArray, list->numProcArrayEntries);
	return r;
}
