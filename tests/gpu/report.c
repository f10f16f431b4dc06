// SPDX-License-Identifier: Apache-2.0
/* report.c - what the driver and NVML say about a card. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <string.h>

void uuid_text(CUdevice dev, char out[64])
{
	CUuuid u;
	const unsigned char *b = (const unsigned char *)u.bytes;

	memset(&u, 0, sizeof(u));
	if (cu.DeviceGetUuid)
		must(cu.DeviceGetUuid(&u, dev), "cuDeviceGetUuid");
	snprintf(out, 64,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

/* Continues a JSON object with what is told about memory now. */
void print_memory(const char *prefix, CUdevice dev)
{
	nvmlDevice_t handle;
	nvmlMemory_t v1;
	nvmlMemory_v2_t v2 = {.version = sizeof(v2) | 2u << 24};
	size_t free_bytes = 0, total = 0;
	char uuid[64];

	must(cu.MemGetInfo(&free_bytes, &total), "cuMemGetInfo");
	printf(",\"%sfree\":%zu,\"%stotal\":%zu", prefix, free_bytes, prefix, total);
	uuid_text(dev, uuid);
	if (!nvml.ready)
		return;
	if (nvml.DeviceGetHandleByUUID(uuid, &handle)) { /* a MIG instance has another prefix */
		uuid[0] = 'M';
		uuid[1] = 'I';
		uuid[2] = 'G';
		if (nvml.DeviceGetHandleByUUID(uuid, &handle))
			return;
	}
	if (nvml.DeviceGetMemoryInfo(handle, &v1) == NVML_SUCCESS)
		printf(",\"%snvml_total\":%llu,\"%snvml_used\":%llu,\"%snvml_free\":%llu", prefix,
		       v1.total, prefix, v1.used, prefix, v1.free);
	if (nvml.DeviceGetMemoryInfo_v2 && nvml.DeviceGetMemoryInfo_v2(handle, &v2) == NVML_SUCCESS)
		printf(",\"%snvml2_total\":%llu,\"%snvml2_reserved\":%llu,\"%snvml2_used\":%llu,\"%"
		       "snvml2_free\":%llu",
		       prefix, v2.total, prefix, v2.reserved, prefix, v2.used, prefix, v2.free);
}

void cmd_count(void)
{
	int n = 0;

	must(cu.DeviceGetCount(&n), "cuDeviceGetCount");
	printf("{\"cmd\":\"count\",\"devices\":%d}\n", n);
	fflush(stdout);
}

static void list_one(const char *kind, unsigned index, nvmlDevice_t device)
{
	char name[96] = "", uuid[96] = "";
	nvmlMemory_t memory = {0};

	nvml.DeviceGetName(device, name, sizeof(name));
	nvml.DeviceGetUUID(device, uuid, sizeof(uuid));
	nvml.DeviceGetMemoryInfo(device, &memory);
	printf("{\"cmd\":\"list\",\"kind\":\"%s\",\"index\":%u,\"name\":\"%s\",\"uuid\":\"%s\","
	       "\"total\":%llu}\n",
	       kind, index, name, uuid, memory.total);
}

/* As nvidia-smi -L: each GPU, and behind it its MIG instances. */
void cmd_list(void)
{
	unsigned n = 0, most = 0;
	nvmlDevice_t gpu, mig;

	if (!nvml.ready || nvml.DeviceGetCount(&n))
		die("--list", "NVML does not answer");
	for (unsigned i = 0; i < n; i++) {
		if (nvml.DeviceGetHandleByIndex(i, &gpu))
			continue;
		list_one("GPU", i, gpu);
		if (nvml.DeviceGetMaxMigDeviceCount(gpu, &most))
			most = 0;
		for (unsigned k = 0; k < most; k++)
			if (nvml.DeviceGetMigDeviceHandleByIndex(gpu, k, &mig) == NVML_SUCCESS)
				list_one("MIG", k, mig);
	}
	fflush(stdout);
}

#define MPS_ENABLED 133 /* device attribute: contexts go through MPS */

void cmd_report(struct worker *w)
{
	char name[128] = "", uuid[64];
	size_t total = 0;
	int version = 0, mps = -1; /* not known to the driver */

	if (cu.DeviceGetAttribute(&mps, MPS_ENABLED, w->device))
		mps = -1;
	must(cu.DeviceGetName(name, sizeof(name), w->device), "cuDeviceGetName");
	must(cu.DeviceTotalMem(&total, w->device), "cuDeviceTotalMem");
	must(cu.DriverGetVersion(&version), "cuDriverGetVersion");
	uuid_text(w->device, uuid);
	printf("{\"cmd\":\"report\",\"device\":%d,\"uuid\":\"%s\",\"name\":\"%s\",\"driver\":%d,"
	       "\"device_total\":%zu",
	       w->device, uuid, name, version, total);
	print_memory("", w->device);
	printf(",\"mps\":%d}\n", mps);
	fflush(stdout);
}
