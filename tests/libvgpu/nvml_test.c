/* SPDX-License-Identifier: Apache-2.0 */
/* nvml_test.c - which processes of a card a job sees, by the numbers that NVML has for them. */
#include "../../libvgpu/hooks/nvml_processes.c"

#include "check.h"

struct vgpu_state vgpu_state;
struct vgpu_real vgpu_real;

static struct vgpu_cache_header header;
static struct vgpu_slot slots[3];
static struct vgpu_grant grant;
static struct {
	unsigned pid[8], n;
} card;

void vgpu_need_nvml(void)
{
}

int vgpu_card_of_nvml(nvmlDevice_t device)
{
	return device ? 0 : -1;
}

static nvmlReturn_t running(nvmlDevice_t device, unsigned *n, nvmlProcessInfo_t *infos)
{
	(void)device;
	CHECK(*n >= card.n);
	*n = card.n;
	for (unsigned i = 0; i < card.n; i++)
		infos[i] = (nvmlProcessInfo_t){.pid = card.pid[i], .usedGpuMemory = i};
	return NVML_SUCCESS;
}

/* Its pid is not at the beginning. */
static nvmlReturn_t use(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *infos)
{
	(void)device;
	infos->processSamplesCount = card.n;
	for (unsigned i = 0; i < card.n; i++)
		infos->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = 7000 + i,
									    .pid = card.pid[i],
									    .smUtil = i};
	return NVML_SUCCESS;
}

static void slot(unsigned i, uint32_t pid, uint64_t ns, uint32_t host_pid)
{
	vgpu_state.cache.slots[i] =
		(struct vgpu_slot){.owner = i + 1, .pid = pid, .pid_ns = ns, .host_pid = host_pid};
	vgpu_state.cache.header->high_slot = i + 1;
}

static void lists(unsigned a, unsigned b, unsigned c, unsigned d)
{
	card.n = 4;
	card.pid[0] = a, card.pid[1] = b, card.pid[2] = c, card.pid[3] = d;
}

/* Checks that the job sees so many, of which the first is that one. */
static void sees(unsigned want, unsigned first)
{
	nvmlDevice_t device = (nvmlDevice_t)&card;
	nvmlProcessInfo_t infos[8];
	nvmlProcessUtilizationInfo_v1_t of[8];
	nvmlProcessesUtilizationInfo_t all = {.procUtilArray = of};
	unsigned n = 8;

	CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, infos), NVML_SUCCESS);
	CHECK_EQ(n, want);
	CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &all), NVML_SUCCESS);
	CHECK_EQ(all.processSamplesCount, want);
	if (want) {
		CHECK_EQ(infos[0].pid, first);
		CHECK_EQ(of[0].pid, first);
		CHECK_EQ(of[0].timeStamp, 7000 + of[0].smUtil);
	}
}

int main(void)
{
	const uint64_t host = VGPU_FIRST_PID_NS, inside = 77, other = 78;

	vgpu_cache_init(&header, &grant);
	vgpu_state.cache = (struct vgpu_cache){.header = &header, .slots = slots};
	vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3 = running;
	vgpu_real.nvmlDeviceGetProcessesUtilizationInfo = use;

	/* A job on the host, one of whose processes is 5 in a namespace: 5 here is another's. */
	slot(0, 4000, host, 4000);
	slot(1, 5, inside, 4100);
	vgpu_state.slot = &vgpu_state.cache.slots[0];
	lists(5, 4000, 4100, 9);
	sees(2, 4000);

	/* From inside, where NVML has the host's numbers: the same. */
	vgpu_state.slot = &vgpu_state.cache.slots[1];
	sees(2, 4000);

	/* Where it has those of the namespace, 9 of another one is not this job's. */
	slot(2, 9, other, 4200);
	lists(1, 5, 9, 4000);
	vgpu_state.cache.slots[0].owner = 0;
	sees(1, 5);

	/* One that gresd has not told the host's number of, yet. */
	slot(0, 6, inside, 0);
	vgpu_state.cache.header->high_slot = 3;
	lists(6, 7, 8, 9);
	sees(1, 6);
	return done("nvml_test");
}
