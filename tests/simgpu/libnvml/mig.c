// SPDX-License-Identifier: Apache-2.0
/* mig.c - the MIG instances of a GPU, which have handles of their own. */
#define _GNU_SOURCE
#include "local.h"

#define MAX_INSTANCES 7

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, count, &card);

	if (!rc)
		*count = nv_conf(card)->mig ? MAX_INSTANCES : 0;
	return rc;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
						 nvmlDevice_t *instance)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, instance, &card);

	if (rc)
		return rc;
	for (uint32_t i = nv.st->ngpus; i < nv.st->ncards; i++)
		if (nv_conf(i)->parent == card + 1 && index-- == 0)
			return nv_handle(i, instance);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(__func__, device, is_mig, &card);

	if (!rc)
		*is_mig = nv_conf(card)->parent != 0;
	return rc;
}

/* A question about instances alone. */
static nvmlReturn_t instance(const char *call, nvmlDevice_t device, const void *out,
			     const struct sim_card_config **conf)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(call, device, out, &card);

	if (rc)
		return rc;
	*conf = nv_conf(card);
	return (*conf)->parent ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *gpu)
{
	const struct sim_card_config *conf;
	nvmlReturn_t rc = instance(__func__, device, gpu, &conf);

	return rc ? rc : nv_handle(conf->parent - 1, gpu);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	const struct sim_card_config *conf;
	nvmlReturn_t rc = instance(__func__, device, id, &conf);

	if (!rc)
		*id = conf->gi;
	return rc;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	const struct sim_card_config *conf;
	nvmlReturn_t rc = instance(__func__, device, id, &conf);

	if (!rc)
		*id = conf->ci;
	return rc;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	const struct sim_card_config *conf;
	nvmlReturn_t rc = instance(__func__, device, attributes, &conf);

	if (!rc)
		*attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = conf->sms,
						       .sharedCopyEngineCount = conf->gi_slices,
						       .gpuInstanceSliceCount = conf->gi_slices,
						       .computeInstanceSliceCount = conf->gi_slices,
						       .memorySizeMB = conf->memory >> 20};
	return rc;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(device, attributes);
}
