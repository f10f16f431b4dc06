// SPDX-License-Identifier: Apache-2.0
/* use.c - who uses a card, and how much of it. */
#define _GNU_SOURCE
#include "local.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEMORY_V2 (sizeof(nvmlMemory_v2_t) | 2u << 24)
#define NO_INSTANCE 0xffffffffu
#define BAR1_BYTES (128ull << 30)

/* Used by processes, without what the driver keeps for itself. */
static uint64_t used_bytes(uint32_t card)
{
	uint64_t used;

	sim_lock(nv.st);
	sim_reap(nv.st, true);
	used = sim_mem_used(nv.st, card) - nv_conf(card)->reserved;
	sim_unlock(nv.st);
	return used;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(__func__, device, memory, &card);

	if (rc)
		return rc;
	memory->total = nv_conf(card)->memory;
	memory->used = used_bytes(card) + nv_conf(card)->reserved;
	memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(__func__, device, memory, &card);
	uint64_t taken;

	if (rc)
		return rc;
	if (memory->version != MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = nv_conf(card)->memory;
	memory->reserved = nv_conf(card)->reserved;
	memory->used = used_bytes(card);
	taken = memory->used + memory->reserved;
	memory->free = memory->total > taken ? memory->total - taken : 0;
	return NVML_SUCCESS;
}

/* What a soft limit does is for MPS, and not simulated. */
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, limits, &card);
	int set;

	if (rc)
		return rc;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	if (!limits->nameSpace || limits->softLimit > limits->hardLimit)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(nv.st);
	set = sim_limit_set(nv.st, card, limits->nameSpace, limits->hardLimit);
	sim_unlock(nv.st);
	switch (set) {
	case 0:
		return NVML_SUCCESS;
	case -ENOENT:
		return NVML_ERROR_NOT_FOUND;
	case -ENOSPC:
		return NVML_ERROR_MEMORY;
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, memory, &card);

	if (rc)
		return rc;
	memory->bar1Total = BAR1_BYTES;
	memory->bar1Used = 2ull << 20;
	memory->bar1Free = memory->bar1Total - memory->bar1Used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, utilization, &card);

	if (rc)
		return rc;
	sim_lock(nv.st);
	sim_advance_all(nv.st);
	utilization->gpu = nv.st->card[card].util_percent;
	sim_unlock(nv.st);
	utilization->memory = utilization->gpu / 2;
	return NVML_SUCCESS;
}

/* What a process has on a card; on a GPU, with that on its instances, of which one is told. */
static uint64_t memory_on(const struct sim_proc *p, uint32_t card, uint32_t *where)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < nv.st->ncards; i++) {
		if (!sim_is_of(nv.st, i, card) || !p->mem[i])
			continue;
		sum += p->mem[i];
		*where = i;
	}
	return sum;
}

/* Copies out up to *count processes; *count becomes how many there are. */
static nvmlReturn_t processes(const char *call, nvmlDevice_t device, unsigned *count, void *infos,
			      bool v1)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(call, device, count, &card);
	nvmlProcessInfo_v1_t *one = infos;
	nvmlProcessInfo_t *two = infos;
	unsigned n = 0;

	if (rc)
		return rc;
	if (*count && !infos)
		return NVML_ERROR_INVALID_ARGUMENT;
	sim_lock(nv.st);
	sim_reap(nv.st, true);
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		const struct sim_proc *p = &nv.st->proc[i];
		uint32_t on = card;
		uint64_t memory = p->used ? memory_on(p, card, &on) : 0;
		const struct sim_card_config *c = nv_conf(on);

		if (!memory)
			continue;
		if (n < *count && v1)
			one[n] = (nvmlProcessInfo_v1_t){(unsigned)sim_proc_pid(nv.st, i), memory};
		else if (n < *count)
			two[n] = (nvmlProcessInfo_t){(unsigned)sim_proc_pid(nv.st, i), memory,
						     c->parent ? c->gi : NO_INSTANCE,
						     c->parent ? c->ci : NO_INSTANCE};
		n++;
	}
	sim_unlock(nv.st);
	rc = n > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*count = n;
	return rc;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
						  nvmlProcessInfo_v1_t *infos)
{
	return processes(__func__, device, count, infos, true);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
						     nvmlProcessInfo_t *infos)
{
	return processes(__func__, device, count, infos, false);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						     nvmlProcessInfo_t *infos)
{
	return processes(__func__, device, count, infos, false);
}

/* No process draws, and none goes through MPS. */
static nvmlReturn_t no_processes(const char *call, nvmlDevice_t device, unsigned *count)
{
	uint32_t card;
	nvmlReturn_t rc = nv_card(call, device, count, &card);

	if (!rc)
		*count = 0;
	return rc;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
						   nvmlProcessInfo_v1_t *infos)
{
	(void)infos;
	return no_processes(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
						      nvmlProcessInfo_t *infos)
{
	(void)infos;
	return no_processes(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
						      nvmlProcessInfo_t *infos)
{
	(void)infos;
	return no_processes(__func__, device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
							nvmlProcessInfo_t *infos)
{
	(void)infos;
	return no_processes(__func__, device, count);
}

/* Since 1970, the end of the last period of which a card has samples. */
static uint64_t sampled_until_us(const struct sim_card *c)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000 -
	       (sim_now() + SIM_SAMPLE_NS - c->sample_at_ns) / 1000;
}

static void add_sample(nvmlProcessUtilizationSample_t *sum, unsigned *n, unsigned pid,
		       const struct sim_sample *s)
{
	unsigned i = 0;

	while (i < *n && sum[i].pid != pid)
		i++;
	if (i == *n)
		sum[(*n)++] = (nvmlProcessUtilizationSample_t){.pid = pid};
	sum[i].smUtil += s->percent;
}

/* As measured: one sample for each process that worked, the mean over the whole time since
 * `since` (microseconds since 1970), in which others may have worked or nobody. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
					     nvmlProcessUtilizationSample_t *samples,
					     unsigned *count, unsigned long long since)
{
	const uint64_t period_us = SIM_SAMPLE_NS / 1000;
	nvmlProcessUtilizationSample_t sum[SIM_SAMPLES];
	uint64_t until, oldest = UINT64_MAX;
	uint32_t card;
	nvmlReturn_t rc = nv_gpu(__func__, device, count, &card);
	struct sim_card *c;
	unsigned n = 0;

	if (rc)
		return rc;
	c = &nv.st->card[card];
	sim_lock(nv.st);
	sim_advance_all(nv.st);
	until = sampled_until_us(c);
	for (uint32_t i = c->nsamples > SIM_SAMPLES ? c->nsamples - SIM_SAMPLES : 0;
	     i < c->nsamples; i++) {
		const struct sim_sample *s = &c->sample[i % SIM_SAMPLES];
		const struct sim_proc *p = &nv.st->proc[s->proc];

		if (s->time_us < oldest)
			oldest = s->time_us;
		if (s->time_us > since + period_us / 2)
			add_sample(sum, &n,
				   (unsigned)(p->used && p->pid == s->pid
						      ? sim_proc_pid(nv.st, s->proc)
						      : s->pid),
				   s);
	}
	sim_unlock(nv.st);
	if (!samples || n > *count) {
		*count = samples ? n : SIM_SAMPLES;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	if (since + period_us < oldest) /* what is older is not kept */
		since = oldest - period_us;
	for (unsigned i = 0; i < n; i++) {
		uint64_t periods = (until - since + period_us / 2) / period_us;

		sum[i].smUtil = (unsigned)((sum[i].smUtil + periods / 2) / (periods ? periods : 1));
		sum[i].memUtil = sum[i].smUtil / 2;
		sum[i].timeStamp = until;
		samples[i] = sum[i];
	}
	*count = n;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
