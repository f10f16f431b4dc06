// SPDX-License-Identifier: Apache-2.0
/* nvml.c - initialisation, errors, and the way to a device handle. */
#define _GNU_SOURCE
#include "local.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define DRIVER_VERSION "580.159.04"

struct nvml nv = {.lock = PTHREAD_MUTEX_INITIALIZER};

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	nvmlReturn_t rc = NVML_SUCCESS;

	(void)flags;
	pthread_mutex_lock(&nv.lock);
	/* the file stays open for good: see state.c */
	if (!nv.st)
		nv.st = sim_attach(&nv);
	if (!nv.st) {
		rc = NVML_ERROR_DRIVER_NOT_LOADED;
	} else {
		for (uint32_t i = 0; i < SIM_MAX_CARDS && !nv.inits; i++)
			nv.device[i].card = i;
		__atomic_add_fetch(&nv.inits, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&nv.lock);
	return rc;
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t rc = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&nv.lock);
	if (nv.inits) {
		__atomic_sub_fetch(&nv.inits, 1, __ATOMIC_RELEASE);
		rc = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&nv.lock);
	return rc;
}

nvmlReturn_t nv_enter(const char *call)
{
	uint64_t slow = 0;
	int code = 0;
	bool hit = false;

	if (!__atomic_load_n(&nv.inits, __ATOMIC_ACQUIRE))
		return NVML_ERROR_UNINITIALIZED;
	if (!nv.st->nfaults)
		return NVML_SUCCESS;
	sim_lock(nv.st);
	hit = sim_fault_hit(nv.st, call, &code, &slow);
	sim_unlock(nv.st);
	if (slow) {
		struct timespec ts = {(time_t)(slow / 1000000000), (long)(slow % 1000000000)};

		nanosleep(&ts, NULL);
	}
	return hit ? code : NVML_SUCCESS;
}

nvmlReturn_t nv_card(const char *call, nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t rc = nv_enter(call);

	if (rc)
		return rc;
	if (!out || device < nv.device || device >= nv.device + nv.st->ncards)
		return NVML_ERROR_INVALID_ARGUMENT;
	*card = device->card;
	return nv.st->card[*card].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nv_gpu(const char *call, nvmlDevice_t device, const void *out, uint32_t *card)
{
	nvmlReturn_t rc = nv_card(call, device, out, card);

	return !rc && nv_conf(*card)->parent ? NVML_ERROR_NOT_SUPPORTED : rc;
}

nvmlReturn_t nv_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_MEMORY:
		return "Insufficient Memory";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
		return "Argument version mismatch";
	}
	return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	nvmlReturn_t rc = nv_enter(__func__);

	return rc ? rc : nv_text(version, length, DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	return nv_text(version, length, "13." DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = 13000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++)
		if (nv.st->proc[i].used && nv.st->proc[i].pid == (int32_t)pid)
			return nv_text(name, length, nv.st->proc[i].name);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc || !count)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	*count = nv.st->ngpus;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nv_handle(uint32_t card, nvmlDevice_t *device)
{
	*device = &nv.device[card];
	return nv.st->card[card].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc || !device || index >= nv.st->ngpus)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	return nv_handle(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc || !device || !uuid)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < nv.st->ncards; i++)
		if (strcmp(nv_conf(i)->uuid, uuid) == 0)
			return nv_handle(i, device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	nvmlReturn_t rc = nv_enter(__func__);

	if (rc || !device || !id)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < nv.st->ngpus; i++) {
		const char *pci = nv_conf(i)->pci;

		if (strcasecmp(id, pci) == 0 || strcasecmp(id, pci + 4) == 0 ||
		    strcasecmp(id, pci + 9) == 0)
			return nvmlDeviceGetHandleByIndex_v2(i, device);
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}
