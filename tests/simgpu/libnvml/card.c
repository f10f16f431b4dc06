// SPDX-License-Identifier: Apache-2.0
/* card.c - what a card is: names, numbers, modes, and its sensors. */
#define _GNU_SOURCE
#include "local.h"

#include <stdio.h>
#include <string.h>

#define BRAND_NVIDIA 14
#define H100_PCI_ID 0x233010deu

#define ASK(ask, device, out)                                \
	uint32_t card;                                       \
	nvmlReturn_t rc = ask(__func__, device, out, &card); \
	if (rc)                                              \
	return rc
#define CARD(device, out) ASK(nv_card, device, out)
#define GPU(device, out) ASK(nv_gpu, device, out)

void nv_pci(uint32_t card, nvmlPciInfo_t *pci)
{
	const char *id = nv_conf(card)->pci;

	memset(pci, 0, sizeof(*pci));
	sscanf(id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
	snprintf(pci->busId, sizeof(pci->busId), "%.16s", id);
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%.12s", id + 4);
	pci->pciDeviceId = H100_PCI_ID;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	CARD(device, uuid);
	return nv_text(uuid, length, nv_conf(card)->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	CARD(device, name);
	return nv_text(name, length, nv_conf(card)->name);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
	char text[16];

	GPU(device, serial);
	snprintf(text, sizeof(text), "13240220%05u", card);
	return nv_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
	GPU(device, minor);
	*minor = nv_conf(card)->minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	GPU(device, index);
	*index = card;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU(device, pci);
	nv_pci(card, pci);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU(device, pci);
	/* the structure of version 2 ends before busId, after four reserved numbers */
	nvmlPciInfo_t full;
	nv_pci(card, &full);
	memset(pci, 0, offsetof(nvmlPciInfo_t, busId) + 16);
	memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	GPU(device, pci);
	nvmlPciInfo_t full;
	nv_pci(card, &full);
	memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	CARD(device, major && minor ? major : NULL);
	*major = (int)nv_conf(card)->cc_major;
	*minor = (int)nv_conf(card)->cc_minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *arch)
{
	static const unsigned by_major[] = {0, 0, 0, 2, 0, 3, 4, 5, 7, 9, 10};

	CARD(device, arch);
	*arch = nv_conf(card)->cc_major < 11 ? by_major[nv_conf(card)->cc_major] : 0xffffffffu;
	return NVML_SUCCESS;
}

/* Numbers that are the same for every card. */
#define FIXED(name, type, out, value)                     \
	nvmlReturn_t name(nvmlDevice_t device, type *out) \
	{                                                 \
		GPU(device, out);                         \
		*out = value;                             \
		return NVML_SUCCESS;                      \
	}
FIXED(nvmlDeviceGetBrand, int, brand, BRAND_NVIDIA)
FIXED(nvmlDeviceGetPersistenceMode, int, mode, 1)
FIXED(nvmlDeviceGetComputeMode, int, mode, 0)
FIXED(nvmlDeviceGetPowerManagementLimit, unsigned, limit, 700000)
FIXED(nvmlDeviceGetEnforcedPowerLimit, unsigned, limit, 700000)
FIXED(nvmlDeviceGetPerformanceState, int, state, 0)

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
	GPU(device, current && pending ? current : NULL);
	*current = *pending = 1;
	return NVML_SUCCESS;
}

/* type 1: uncorrected. The count is what `simgpu xid --ecc` added. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
					 unsigned long long *count)
{
	GPU(device, count);
	if (type < 0 || type > 1 || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = type == 1 ? nv.st->card[card].ecc_errors : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *temp)
{
	GPU(device, temp);
	if (sensor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*temp = 30 + nv.st->card[card].util_percent / 3;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *power)
{
	GPU(device, power);
	*power = 70000 + nv.st->card[card].util_percent * 6000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *clock)
{
	GPU(device, clock);
	if (type < 0 || type > 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	*clock = type == 2 ? 2619 : 1980;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *clock)
{
	return nvmlDeviceGetClockInfo(device, type, clock);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	GPU(device, current && pending ? current : NULL);
	*current = *pending = nv_conf(card)->mig;
	return NVML_SUCCESS;
}
