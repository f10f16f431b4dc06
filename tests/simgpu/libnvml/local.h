/* SPDX-License-Identifier: Apache-2.0 */
/* local.h - what the simulated NVML keeps in a process. A device handle is
 * the address of one element of nv.device. */
#ifndef SIMGPU_NVML_LOCAL_H
#define SIMGPU_NVML_LOCAL_H

#include <pthread.h>
#include <stdint.h>

#include "../model.h"
#include "nvml_abi.h"

struct nvmlDevice_st {
	uint32_t card;
};

struct nvml {
	pthread_mutex_t lock;
	struct sim_state *st;
	unsigned inits;
	struct nvmlDevice_st device[SIM_MAX_CARDS];
};

extern struct nvml nv;

/* NVML_SUCCESS and the card's number; or why the call cannot go on */
nvmlReturn_t nv_card(const char *call, nvmlDevice_t device, const void *out, uint32_t *card);
/* the same of a GPU; of a MIG instance, NVML does not tell it */
nvmlReturn_t nv_gpu(const char *call, nvmlDevice_t device, const void *out, uint32_t *card);
nvmlReturn_t nv_handle(uint32_t card, nvmlDevice_t *device);
nvmlReturn_t nv_enter(const char *call);
nvmlReturn_t nv_text(char *out, unsigned length, const char *text);
void nv_pci(uint32_t card, nvmlPciInfo_t *pci);

static inline const struct sim_card_config *nv_conf(uint32_t card)
{
	return &nv.st->card[card].conf;
}

#endif
