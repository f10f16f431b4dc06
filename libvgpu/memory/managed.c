/* SPDX-License-Identifier: Apache-2.0 */
/* managed.c - see memory.h. Charged in full: any page may come to the card. */
#include <errno.h>

#include "../driver/prototypes.h"
#include "account.h"
#include "memory.h"

/* The card gives managed memory in steps of this many bytes, and one step more for
 * its bookkeeping: a process that holds n bytes takes n / step + 1 steps (measured
 * on an H200, driver 580, for 1 MiB to 3.5 GiB). */
#define MANAGED_STEP (128ull << 20)

static VGPU_PRIVATE struct {
	uint64_t live, charged;
} managed[VGPU_MAX_CARDS];

static uint64_t managed_bytes(uint64_t live)
{
	return live ? (live / MANAGED_STEP + 1) * MANAGED_STEP : 0;
}

void vgpu_managed_less(int card, uint64_t size)
{
	uint64_t live = SUB(&managed[card].live, size);

	SUB(&vgpu_managed_bytes, size);
	vgpu_charge_down_to(card, &managed[card].charged, managed_bytes(live), &managed[card].live,
			    managed_bytes);
}

/* size more bytes: 0, or -ENOMEM with nothing changed. */
static int more(int card, uint64_t size)
{
	if (vgpu_absurd(size))
		return -ENOMEM;
	ADD(&vgpu_managed_bytes, size);
	uint64_t live = ADD(&managed[card].live, size);
	if (vgpu_charge_up_to(card, &managed[card].charged, managed_bytes(live)) == 0)
		return 0;
	vgpu_managed_less(card, size);
	return -ENOMEM;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t size, unsigned flags)
{
	struct vgpu_item item = {.size = size, .kind = VGPU_MANAGED};

	VGPU_NEED_CUDA(cuMemAllocManaged);
	item.card = dptr ? vgpu_card_current() : -1;
	if (item.card < 0)
		return vgpu_real.cuMemAllocManaged(dptr, size, flags);
	vgpu_mem_begin();
	if (more(item.card, size)) {
		vgpu_mem_end();
		return vgpu_oom(item.card, size);
	}
	CUresult r = vgpu_real.cuMemAllocManaged(dptr, size, flags);
	if (r == CUDA_SUCCESS) {
		item.key = *dptr;
		item.owner = vgpu_context_owner(item.card);
		vgpu_table_put(&vgpu_addresses, &item);
	} else {
		vgpu_managed_less(item.card, size);
	}
	vgpu_mem_end();
	return r;
}
