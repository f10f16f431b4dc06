/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml_processes.c - the processes of a card: on a card of the job, only the
 * job's own are listed. Their names and memory are nobody else's business, and
 * on a card of its own a job would not see others either.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"

#define MAX_PROCESSES 1024u

static uint64_t ns_of(const struct vgpu_slot *s)
{
	return LOAD(&s->pid_ns);
}

static uint32_t on_host(const struct vgpu_slot *s)
{
	return ns_of(s) == VGPU_FIRST_PID_NS ? s->pid : LOAD(&s->host_pid);
}

/* Whether a process of the job has this number: on the host, or in this PID namespace. The
 * same number is another process's in another namespace. */
static bool of_job(unsigned pid, bool host)
{
	const struct vgpu_cache *c = &vgpu_state.cache;
	uint32_t count = vgpu_slots_in_use(c);

	for (uint32_t i = 0; i < count; i++) {
		const struct vgpu_slot *s = &c->slots[i];

		if (LOAD(&s->owner) && (host ? on_host(s) == pid
					     : s->pid == pid && ns_of(s) == ns_of(vgpu_state.slot)))
			return true;
	}
	return false;
}

static unsigned pid_at(const void *list, unsigned i, size_t size)
{
	unsigned pid;

	memcpy(&pid, (const char *)list + i * size, sizeof pid);
	return pid;
}

/* In a container a driver lists processes by their numbers there, or by those on the host: then
 * one of the job's is in the list by a number that it does not have here. */
static bool by_host(const void *list, unsigned n, size_t size)
{
	const struct vgpu_cache *c = &vgpu_state.cache;
	uint32_t count = vgpu_slots_in_use(c);

	if (ns_of(vgpu_state.slot) == VGPU_FIRST_PID_NS)
		return true;
	for (uint32_t i = 0; i < count; i++) {
		const struct vgpu_slot *s = &c->slots[i];
		uint32_t pid = LOAD(&s->owner) ? on_host(s) : 0;

		for (unsigned k = 0; pid && pid != s->pid && k < n; k++)
			if (pid_at(list, k, size) == pid)
				return true;
	}
	return false;
}

/* Takes out of a list what is not the job's; returns how many are left. at: where in an entry
 * its pid is. */
static unsigned keep_own(void *list, unsigned n, size_t size, size_t at)
{
	char *all = list;
	bool host = by_host(all + at, n, size);
	unsigned kept = 0;

	for (unsigned i = 0; i < n; i++)
		if (of_job(pid_at(all + at, i, size), host))
			memmove(all + kept++ * size, all + i * size, size);
	return kept;
}

/* Every version: the entries differ in size, the pid comes first in all. The
 * whole list is asked for, filtered, and handed out by NVML's own rules. */
typedef nvmlReturn_t (*ask_list)(nvmlDevice_t, unsigned *, void *);

static nvmlReturn_t filtered(ask_list ask, nvmlDevice_t device, unsigned *n, void *infos,
			     size_t size)
{
	unsigned have = MAX_PROCESSES, room;
	char *all = n && vgpu_card_of_nvml(device) >= 0 ? calloc(MAX_PROCESSES, size) : NULL;

	if (!all)
		return ask(device, n, infos);
	nvmlReturn_t r = ask(device, &have, all);
	if (r == NVML_SUCCESS) {
		room = *n;
		*n = keep_own(all, have, size, 0);
		if (*n > room || (*n && !infos))
			r = NVML_ERROR_INSUFFICIENT_SIZE;
		else if (*n)
			memcpy(infos, all, *n * size);
	}
	free(all);
	return r;
}

#define NV_LIST(name, type)                                                                 \
	nvmlReturn_t name(nvmlDevice_t device, unsigned *n, type *infos)                    \
	{                                                                                   \
		VGPU_NEED_NVML(name);                                                       \
		return filtered((ask_list)vgpu_real.name, device, n, infos, sizeof *infos); \
	}
#define CU(name, params)
#include "../driver/hooks.def"

/* The callers of these bring room for every process of the card: what is not the
 * job's is taken out of it afterwards. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *samples, unsigned *n,
					     unsigned long long since)
{
	VGPU_NEED_NVML(nvmlDeviceGetProcessUtilization);
	nvmlReturn_t r = vgpu_real.nvmlDeviceGetProcessUtilization(device, samples, n, since);
	if (r == NVML_SUCCESS && samples && n && vgpu_card_of_nvml(device) >= 0)
		*n = keep_own(samples, *n, sizeof *samples, 0);
	return r;
}

#define LISTS(name, type, array, count, at)                                                        \
	nvmlReturn_t name(nvmlDevice_t device, type *list)                                         \
	{                                                                                          \
		VGPU_NEED_NVML(name);                                                              \
		nvmlReturn_t r = vgpu_real.name(device, list);                                     \
                                                                                                   \
		if (r == NVML_SUCCESS && list->array && vgpu_card_of_nvml(device) >= 0)            \
			list->count = keep_own(list->array, list->count, sizeof *list->array, at); \
		return r;                                                                          \
	}
LISTS(nvmlDeviceGetProcessesUtilizationInfo, nvmlProcessesUtilizationInfo_t, procUtilArray,
      processSamplesCount, offsetof(nvmlProcessUtilizationInfo_v1_t, pid))
LISTS(nvmlDeviceGetRunningProcessDetailList, nvmlProcessDetailList_t, procArray,
      numProcArrayEntries, 0)
