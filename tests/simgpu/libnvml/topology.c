// SPDX-License-Identifier: Apache-2.0
/* topology.c - how cards are joined to each other and to the processors. */
#define _GNU_SOURCE
#include "local.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define BITS (sizeof(unsigned long) * CHAR_BIT)
#define MAX_LINKS 36
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { CAPS_READ, CAPS_WRITE, CAPS_NVLINK, CAPS_ATOMICS, CAPS_PCI };

static int level_of(uint32_t a, uint32_t b)
{
	/* SYS, NODE, PHB, PXB, PIX, INT as NVML counts them */
	static const int levels[] = {50, 40, 30, 20, 10, 0};

	return levels[SIM_LINK_PCI(nv_conf(a)->link[b])];
}

static nvmlReturn_t two_cards(const char *call, nvmlDevice_t a, nvmlDevice_t b, const void *out,
			      uint32_t *x, uint32_t *y)
{
	nvmlReturn_t rc = nv_gpu(call, a, out, x);

	if (!rc)
		rc = nv_gpu(call, b, out, y);
	return rc;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
	uint32_t x, y;
	nvmlReturn_t rc = two_cards(__func__, a, b, level, &x, &y);

	if (!rc)
		*level = x == y ? 0 : level_of(x, y);
	return rc;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int level, unsigned *count,
					      nvmlDevice_t *devices)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, count, &card);
	unsigned n = 0;

	if (rc)
		return rc;
	for (uint32_t i = 0; i < nv.st->ngpus; i++) {
		if (i == card || level_of(card, i) != level)
			continue;
		if (devices && n < *count)
			devices[n] = &nv.device[i];
		n++;
	}
	*count = n;
	return NVML_SUCCESS;
}

/* The card at the other end of a link; links are numbered peer by peer. With
 * a switch, every card has as many links as its widest pair. */
static bool link_end(uint32_t card, unsigned link, uint32_t *peer)
{
	const struct sim_card_config *c = nv_conf(card);
	unsigned first = 0, most = 0;

	*peer = card;
	for (uint32_t i = 0; i < nv.st->ngpus; i++) {
		unsigned n = i == card ? 0 : SIM_LINK_NV(c->link[i]);

		if (n > most)
			most = n;
		if (!c->nvswitch && link >= first && link < first + n) {
			*peer = i;
			return true;
		}
		first += n;
	}
	return c->nvswitch && link < most;
}

static nvmlReturn_t one_link(const char *call, nvmlDevice_t device, unsigned link, const void *out,
			     uint32_t *card, uint32_t *peer)
{
	nvmlReturn_t rc = nv_gpu(call, device, out, card);

	if (rc)
		return rc;
	if (link >= MAX_LINKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	return link_end(*card, link, peer) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *active)
{
	uint32_t card, peer;
	nvmlReturn_t rc = one_link(__func__, device, link, active, &card, &peer);

	if (!rc)
		*active = 1;
	return rc;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type)
{
	uint32_t card, peer;
	nvmlReturn_t rc = one_link(__func__, device, link, type, &card, &peer);

	if (!rc)
		*type = nv_conf(card)->nvswitch ? REMOTE_SWITCH : REMOTE_GPU;
	return rc;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
						 nvmlPciInfo_t *pci)
{
	uint32_t card, peer;
	nvmlReturn_t rc = one_link(__func__, device, link, pci, &card, &peer);

	if (rc)
		return rc;
	nv_pci(peer, pci);
	if (nv_conf(card)->nvswitch) {
		memset(pci, 0, sizeof(*pci));
		pci->bus = 0xc1;
		strcpy(pci->busId, "00000000:C1:00.0");
		strcpy(pci->busIdLegacy, "0000:C1:00.0");
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link,
					      nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index, int *status)
{
	uint32_t x, y, link;
	nvmlReturn_t rc = two_cards(__func__, a, b, status, &x, &y);
	bool ok;

	if (rc)
		return rc;
	if (x == y || index < CAPS_READ || index > CAPS_PCI)
		return NVML_ERROR_INVALID_ARGUMENT;
	link = nv_conf(x)->link[y];
	if (index == CAPS_NVLINK || index == CAPS_ATOMICS)
		ok = SIM_LINK_NV(link) > 0;
	else
		ok = SIM_LINK_PCI(link) >= SIM_LINK_PXB || (SIM_LINK_NV(link) && index != CAPS_PCI);
	*status = ok ? P2P_OK : P2P_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

/* A list such as 0-3,8 into a set of n words. */
static void read_cpus(const char *list, unsigned n, unsigned long *set)
{
	memset(set, 0, n * sizeof(*set));
	while (*list) {
		char *end;
		unsigned long a = strtoul(list, &end, 10), b = a;

		if (end == list)
			return;
		if (*end == '-')
			b = strtoul(end + 1, &end, 10);
		for (; a <= b && a < n * BITS; a++)
			set[a / BITS] |= 1ul << a % BITS;
		list = end + (*end == ',');
	}
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned n, unsigned long *set)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, n ? set : NULL, &card);

	if (!rc)
		read_cpus(nv_conf(card)->cpus, n, set);
	return rc;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned n,
						 unsigned long *set, unsigned scope)
{
	return scope > 1 ? NVML_ERROR_INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(device, n, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned n, unsigned long *set,
					 unsigned scope)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, n && scope <= 1 ? set : NULL, &card);
	int node;

	if (rc)
		return rc;
	memset(set, 0, n * sizeof(*set));
	node = nv_conf(card)->numa;
	if (node >= 0 && (unsigned)node < n * BITS)
		set[(unsigned)node / BITS] |= 1ul << (unsigned)node % BITS;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, node, &card);

	if (rc)
		return rc;
	if (nv_conf(card)->numa < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*node = (unsigned)nv_conf(card)->numa;
	return NVML_SUCCESS;
}
