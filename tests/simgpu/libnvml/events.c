// SPDX-License-Identifier: Apache-2.0
/* events.c - event sets: XID errors that `simgpu xid` reports. */
#define _GNU_SOURCE
#include "local.h"

#include <stdlib.h>
#include <time.h>

/* A driver sleeps until there is an event; what looks cost here is measured as gresd's. */
#define LOOK_NS 100000000l
#define TYPES (NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC)

struct nvmlEventSet_st {
	unsigned long long types[SIM_MAX_CARDS];
	uint32_t seen[SIM_MAX_CARDS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc || !set)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, types, &card);

	if (!rc)
		*types = TYPES;
	return rc;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
				      nvmlEventSet_t set)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, set, &card);

	if (rc)
		return rc;
	if (types & ~TYPES)
		return NVML_ERROR_NOT_SUPPORTED;
	set->types[card] |= types;
	set->seen[card] = nv.st->card[card].nxids; /* what was before does not count */
	return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
	for (uint32_t i = 0; i < nv.st->ngpus; i++) {
		const struct sim_card *c = &nv.st->card[i];

		if (!(set->types[i] & NVML_EVENT_XID) || set->seen[i] >= c->nxids)
			continue;
		*data = (nvmlEventData_t){.device = &nv.device[i],
					  .eventType = NVML_EVENT_XID,
					  .eventData = c->xid[set->seen[i] % SIM_MAX_XIDS].xid,
					  .gpuInstanceId = 0xffffffffu,
					  .computeInstanceId = 0xffffffffu};
		set->seen[i]++;
		return true;
	}
	return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	const struct timespec nap = {0, LOOK_NS};
	nvmlReturn_t rc = nv_enter(__func__);
	uint64_t until = sim_now() + timeout_ms * 1000000ull;

	if (rc || !set || !data)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		bool found;

		sim_lock(nv.st);
		found = next_event(set, data);
		sim_unlock(nv.st);
		if (found)
			return NVML_SUCCESS;
		if (sim_now() >= until)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&nap, NULL);
	}
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
	return nvmlEventSetWait_v2(set, data, timeout_ms);
}
