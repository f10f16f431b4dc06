/* SPDX-License-Identifier: Apache-2.0 */
/* cards.h - which card of the job is which device of CUDA or NVML. */
#ifndef VGPU_JOB_CARDS_H
#define VGPU_JOB_CARDS_H

#include "../base/util.h"
#include "../driver/cuda_abi.h"

/* Card of a CUDA device, of the current context, or of an NVML handle; -1 when the grant does
 * not have it. */
int vgpu_card_of_device(CUdevice dev);
int vgpu_card_asked(void);
/* The card of the only device that CUDA shows; -1 when there are several, or not
 * known yet. Then no driver call is needed to tell which one is meant: where no
 * context is current, the call that this is asked for fails by itself. */
extern int vgpu_only_card;
static inline int vgpu_card_current(void)
{
	int only = LOAD(&vgpu_only_card);

	return likely(only >= 0) ? only : vgpu_card_asked();
}
int vgpu_card_of_nvml(nvmlDevice_t device);
/* By the UUID as another API tells it; -1 where the grant's are not known yet, too. */
int vgpu_card_of_uuid(const CUuuid *uuid);

/* A device that the job's grant does not name, as a job can see one where Slurm's
 * device cgroup is off: it is to get no context and no memory there. */
bool vgpu_not_granted(CUdevice dev);

/* Reads CUDA_VISIBLE_DEVICES, which the program may change later. Before all else here. */
void vgpu_cards_settings(void);
/* Reads CUDA_MPS_PIPE_DIRECTORY, in cuInit as the driver does. */
void vgpu_cards_init(void);
/* Finds out whether the process is a client of an MPS server. After cuInit. */
void vgpu_cards_mps(void);
/* Grant from the environment: limits for the cards that CUDA shows. */
void vgpu_env_cards(void);

#endif
