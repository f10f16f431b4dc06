/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overhead.c - memory that no allocation call asks for: contexts, code, local
 * memory. A context's cost is charged before it is made; afterwards the card's
 * own count of this process corrects the charge. Inside a job gresd makes the
 * comparison for all processes (mem_outside in the grant); without gresd this
 * process's watcher makes it, on its own slot.
 */
#ifdef VGPU_PRELOAD
#include <stdlib.h>
#include <unistd.h>

#include "vgpu.h"

#define MEASURE_NS 250000000u
/* Short programs never pay for opening NVML. */
#define FIRST_MEASURE_NS 1000000000u
#define MAX_PROCESSES 256
/* Where there is no NVML, it is looked for again no sooner. */
#define NVML_AGAIN_NS 30000000000u
/* What the card takes for a process beyond what it counts as the process's own
 * (9 MiB on an H200 with driver 580). */
#define UNCOUNTED (10ull << 20)

/* The card's count may lag behind what has just been allocated: it lowers the
 * charge only to the highest of so many comparisons. */
#define COMPARISONS 4

/* A context grows a little with what a program does (pools, pitched memory, first
 * launches): room for that is charged from the start and kept. */
#define GROWTH (16ull << 20)

/* What is charged on our slot beside allocations, per card. */
static uint64_t overhead[VGPU_MAX_CARDS];
static uint64_t compared[VGPU_MAX_CARDS][COMPARISONS];
static unsigned comparisons[VGPU_MAX_CARDS];
static nvmlDevice_t handle[VGPU_MAX_CARDS];
static bool nvml_up;
/* Of the comparisons. Never held over a call of NVML: to open it takes the linker's lock, and a
 * thread that has that lock may come here from a constructor. */
static pthread_mutex_t measure_lock = PTHREAD_MUTEX_INITIALIZER;

static void show(int card)
{
	__atomic_store_n(&vgpu_my(card)->mem_context,
			 __atomic_load_n(&overhead[card], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

static uint64_t context_bytes(int card)
{
	uint64_t bytes = vgpu_state.grant->card[card].mem_overhead;

	return bytes ? bytes + GROWTH : 0;
}

int vgpu_overhead_context(int card)
{
	uint64_t bytes = context_bytes(card);
	int r;

	if (bytes == 0)
		return 0;
	vgpu_mem_begin();
	r = vgpu_charge(card, bytes);
	if (r == 0)
		__atomic_add_fetch(&overhead[card], bytes, __ATOMIC_SEQ_CST);
	show(card);
	vgpu_mem_end();
	return r;
}

/* Lowers the overhead charge by at most so many bytes. */
static void lower(int card, uint64_t bytes)
{
	uint64_t have = __atomic_load_n(&overhead[card], __ATOMIC_SEQ_CST), less;

	do
		less = bytes < have ? bytes : have;
	while (!__atomic_compare_exchange_n(&overhead[card], &have, have - less, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	vgpu_release(card, less);
}

void vgpu_overhead_context_gone(int card)
{
	vgpu_mem_begin();
	lower(card, context_bytes(card));
	show(card);
	vgpu_mem_end();
}

/* NULL: NVML does not have the card. Of threads that ask at the same time, all find the same. */
static nvmlDevice_t nvml_handle(int card)
{
	static uint64_t tried;
	nvmlDevice_t found = __atomic_load_n(&handle[card], __ATOMIC_ACQUIRE);
	uint64_t last = __atomic_load_n(&tried, __ATOMIC_RELAXED), now = vgpu_now();

	if (found)
		return found;
	if (!__atomic_load_n(&nvml_up, __ATOMIC_ACQUIRE)) {
		if (last && now - last < NVML_AGAIN_NS)
			return NULL;
		__atomic_store_n(&tried, now, __ATOMIC_RELAXED);
		vgpu_need_nvml();
		if (!vgpu_real.nvmlInit_v2 || vgpu_real.nvmlInit_v2() != NVML_SUCCESS)
			return NULL;
		__atomic_store_n(&nvml_up, true, __ATOMIC_RELEASE);
	}
	if (!vgpu_real.nvmlDeviceGetHandleByUUID ||
	    !vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3)
		return NULL;
	if (vgpu_real.nvmlDeviceGetHandleByUUID(vgpu_state.grant->card[card].uuid, &found) !=
	    NVML_SUCCESS)
		return NULL;
	__atomic_store_n(&handle[card], found, __ATOMIC_RELEASE);
	return found;
}

/* The card's own count of this process. False when it is not listed: another
 * PID namespace, or no context yet. */
bool vgpu_overhead_counted(int card, uint64_t *bytes)
{
	nvmlProcessInfo_t *info;
	unsigned n = MAX_PROCESSES, pid = (unsigned)getpid();
	int cancel = vgpu_no_cancel();
	nvmlDevice_t device = nvml_handle(card);
	bool found = false;

	info = device ? calloc(n, sizeof *info) : NULL;
	if (info &&
	    vgpu_real.nvmlDeviceGetComputeRunningProcesses_v3(device, &n, info) == NVML_SUCCESS) {
		for (unsigned i = 0; i < n && i < MAX_PROCESSES && !found; i++) {
			found = info[i].pid == pid && info[i].usedGpuMemory != ~0ull;
			*bytes = info[i].usedGpuMemory + UNCOUNTED;
		}
	}
	free(info);
	vgpu_cancel_as(cancel);
	return found;
}

/* Notes one comparison. Returns the highest of the last ones, or UINT64_MAX
 * while there are too few. */
static uint64_t highest(int card, uint64_t want)
{
	uint64_t max = 0;

	compared[card][comparisons[card]++ % COMPARISONS] = want;
	if (comparisons[card] < COMPARISONS)
		return UINT64_MAX;
	for (int i = 0; i < COMPARISONS; i++)
		if (compared[card][i] > max)
			max = compared[card][i];
	return max;
}

/* Brings the overhead charge to what was compared. */
static void correct(int card, uint64_t have, uint64_t want, uint64_t max)
{
	if (want > have) {
		__atomic_add_fetch(&overhead[card], want - have, __ATOMIC_SEQ_CST);
		vgpu_charge_forced(card, want - have);
	} else if (max < have && __atomic_load_n(&vgpu_managed_bytes, __ATOMIC_RELAXED) == 0) {
		/* Managed memory is charged in full but may be elsewhere just
		 * now: then a low count proves nothing. */
		lower(card, have - max);
	}
}

/* Modules were charged by the card's free memory, which a neighbour may have taken:
 * what contexts alone do not explain goes. */
static void correct_modules(int card, uint64_t floor, uint64_t max)
{
	if (max < floor && __atomic_load_n(&vgpu_managed_bytes, __ATOMIC_RELAXED) == 0)
		vgpu_modules_lower(card, floor - max);
	comparisons[card] = 0; /* those were with the charge as it was */
}

void vgpu_overhead_measure(int card)
{
	struct vgpu_slot *slot = vgpu_state.slot;
	uint32_t begun, done;
	uint64_t real, told, have, want, max, floor;

	begun = __atomic_load_n(&slot->mem_begun, __ATOMIC_SEQ_CST);
	done = __atomic_load_n(&slot->mem_done, __ATOMIC_SEQ_CST);
	told = __atomic_load_n(&slot->card[card].mem, __ATOMIC_SEQ_CST);
	/* Comparable only when nothing was being allocated or freed meanwhile. */
	if (begun != done || !vgpu_overhead_counted(card, &real))
		return;
	pthread_mutex_lock(&measure_lock);
	if (begun == __atomic_load_n(&slot->mem_begun, __ATOMIC_SEQ_CST)) {
		have = __atomic_load_n(&overhead[card], __ATOMIC_SEQ_CST);
		want = real + have > told ? real + have - told : 0;
		floor = context_bytes(card) *
			__atomic_load_n(&slot->card[card].contexts, __ATOMIC_RELAXED);
		max = highest(card, want);
		if (vgpu_state.from_env)
			correct(card, have, want < floor ? floor : want, max < floor ? floor : max);
		if (vgpu_modules_charged(card) && max != UINT64_MAX)
			correct_modules(card, floor, max);
		show(card);
	}
	pthread_mutex_unlock(&measure_lock);
}

void vgpu_overhead_in_child(void)
{
	pthread_mutex_init(&measure_lock, NULL); /* the parent's watcher may have held it */
	for (int i = 0; i < VGPU_MAX_CARDS; i++)
		overhead[i] = 0;
}

void vgpu_overhead_tick(uint64_t now)
{
	static uint64_t next, compared_modules[VGPU_MAX_CARDS];
	static unsigned looks[VGPU_MAX_CARDS];

	vgpu_pools_tick(now);
	if (next == 0)
		next = now + FIRST_MEASURE_NS;
	if (now < next)
		return;
	next = now + MEASURE_NS;
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		uint64_t charged = vgpu_modules_charged((int)i);

		if (!__atomic_load_n(&vgpu_my((int)i)->contexts, __ATOMIC_RELAXED) ||
		    !vgpu_limit((int)i))
			continue;
		/* With gresd, once after each change of what modules are charged. */
		if (charged != compared_modules[i])
			looks[i] = 0;
		compared_modules[i] = charged;
		if (vgpu_state.from_env || (charged >= GROWTH && looks[i]++ < COMPARISONS))
			vgpu_overhead_measure((int)i);
	}
}
#endif
