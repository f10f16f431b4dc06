// SPDX-License-Identifier: Apache-2.0
/*
 * kernel.c - the kernel: arithmetic in a loop, on every multiprocessor, so
 * that a number of units is an amount of work and not a time.
 *
 * What a kernel of u units takes in a row of kernels is unit * u + gap. Both
 * are measured with probes behind another kernel, so that the way of a launch
 * to the card does not count, and as the difference of five kernels and one,
 * so that the events do not. The smallest of many probes is taken: others on
 * the card, and a late host, disturb some of them, but not all.
 */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <time.h>

#define PROBE_NS 60000.0
#define ROW 5
#define PROBES 24
#define MEASUREMENTS 8
#define MULTIPROCESSORS 16 /* device attribute */
#define BLOCK 512

/* The simulated card reads the first comment line; see tests/simgpu/libcuda/ptx.c. */
static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=vgpu_work ns_per_unit=20 unit_param=0\n"
			  ".visible .entry vgpu_work(\n"
			  "	.param .u32 vgpu_work_units,\n"
			  "	.param .u64 vgpu_work_sink\n"
			  ")\n"
			  "{\n"
			  "	.reg .pred %p<4>;\n"
			  "	.reg .b32 %r<8>;\n"
			  "	.reg .b64 %rd<2>;\n"
			  "	ld.param.u32 %r1, [vgpu_work_units];\n"
			  "	ld.param.u64 %rd1, [vgpu_work_sink];\n"
			  "	mov.u32 %r2, %tid.x;\n"
			  "	mov.u32 %r3, 0;\n"
			  "	setp.eq.u32 %p1, %r1, 0;\n"
			  "	@%p1 bra DONE;\n"
			  "LOOP:\n"
			  "	mad.lo.u32 %r2, %r2, 1664525, 1013904223;\n"
			  "	mad.lo.u32 %r2, %r2, 22695477, 12345;\n"
			  "	add.u32 %r3, %r3, 1;\n"
			  "	setp.lt.u32 %p2, %r3, %r1;\n"
			  "	@%p2 bra LOOP;\n"
			  "DONE:\n"
			  /* never true, but the assembler cannot know: keeps the loop alive */
			  "	setp.eq.u32 %p3, %r1, 4294967295;\n"
			  "	@%p3 st.global.u32 [%rd1], %r2;\n"
			  "	ret;\n"
			  "}\n";

static void launch(struct kernel *k, unsigned units)
{
	uint64_t sink = 0;
	void *params[] = {&units, &sink};

	must(cu.LaunchKernel(k->fn, k->grid, 1, 1, k->block, 1, 1, 0, NULL, params, NULL),
	     "cuLaunchKernel");
}

static double probe(struct kernel *k, unsigned before, unsigned units, int n, CUevent a, CUevent b)
{
	double best = 0;

	for (int i = 0; i < PROBES; i++) {
		const struct timespec pause = {0, 300000};
		float ms = 0;

		launch(k, before);
		must(cu.EventRecord(a, NULL), "cuEventRecord");
		for (int j = 0; j < n; j++)
			launch(k, units);
		must(cu.EventRecord(b, NULL), "cuEventRecord");
		must(cu.EventSynchronize(b), "cuEventSynchronize");
		must(cu.EventElapsedTime(&ms, a, b), "cuEventElapsedTime");
		if (!i || ms * 1e6 < best)
			best = ms * 1e6;
		nanosleep(&pause, NULL); /* a limiter refills its budget meanwhile */
	}
	return best;
}

static double in_a_row(struct kernel *k, unsigned before, unsigned units, CUevent a, CUevent b)
{
	return (probe(k, before, units, ROW, a, b) - probe(k, before, units, 1, a, b)) / (ROW - 1);
}

/* A card that was idle runs slowly at first. */
static void warm_up(struct kernel *k, unsigned units)
{
	uint64_t until = now_ns() + 100000000;

	while (now_ns() < until) {
		launch(k, units);
		must(cu.CtxSynchronize(), "cuCtxSynchronize");
	}
}

static void measure(struct kernel *k, CUevent a, CUevent b)
{
	unsigned units = 1000;
	double t, quarter;

	for (int i = 0; i < 4; i++) {
		t = probe(k, units, units, 1, a, b);
		if (t > 0.8 * PROBE_NS && t < 1.25 * PROBE_NS)
			break;
		units = (unsigned)(units * PROBE_NS / (t > 1 ? t : 1)) + 1;
	}
	t = in_a_row(k, units, units, a, b);
	quarter = in_a_row(k, units, units / 4, a, b);
	k->ns_per_unit = (t - quarter) / (units - units / 4);
	k->gap_ns = t - k->ns_per_unit * units;
}

/* Beside others a probe also takes their slices: then a longer kernel can seem to take less. */
static void calibrate(struct kernel *k)
{
	CUevent a, b;

	must(cu.EventCreate(&a, 0), "cuEventCreate");
	must(cu.EventCreate(&b, 0), "cuEventCreate");
	warm_up(k, 1000);
	for (int i = 0; i < MEASUREMENTS && k->ns_per_unit <= 0; i++)
		measure(k, a, b);
	if (k->ns_per_unit <= 0)
		die("calibration", "a longer kernel did not take longer");
	must(cu.EventDestroy(a), "cuEventDestroy");
	must(cu.EventDestroy(b), "cuEventDestroy");
}

void kernel_open(struct kernel *k, const struct worker *w)
{
	int sms = 0;

	must(cu.ModuleLoadData(&k->module, ptx), "cuModuleLoadData");
	must(cu.ModuleGetFunction(&k->fn, k->module, "vgpu_work"), "cuModuleGetFunction");
	must(cu.DeviceGetAttribute(&sms, MULTIPROCESSORS, w->device), "cuDeviceGetAttribute");
	k->grid = (unsigned)(2 * sms * w->part / 100);
	k->grid += !k->grid;
	k->block = BLOCK;
	k->ns_per_unit = w->unit_ns;
	k->gap_ns = w->gap_ns;
	if (k->ns_per_unit <= 0)
		calibrate(k);
}

void kernel_close(struct kernel *k)
{
	must(cu.ModuleUnload(k->module), "cuModuleUnload");
}

void cmd_fault(void)
{
	static const char stray[] = ".version 7.0\n"
				    ".target sm_70\n"
				    ".address_size 64\n"
				    ".visible .entry vgpu_stray()\n"
				    "{\n"
				    "	.reg .b32 %r<2>;\n"
				    "	.reg .b64 %rd<2>;\n"
				    "	mov.u64 %rd1, 16;\n"
				    "	mov.u32 %r1, 1;\n"
				    "	st.global.u32 [%rd1], %r1;\n"
				    "	ret;\n"
				    "}\n";
	struct kernel k;

	must(cu.ModuleLoadData(&k.module, stray), "cuModuleLoadData");
	must(cu.ModuleGetFunction(&k.fn, k.module, "vgpu_stray"), "cuModuleGetFunction");
	must(cu.LaunchKernel(k.fn, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
	must(cu.CtxSynchronize(), "cuCtxSynchronize");
	printf("{\"cmd\":\"fault\",\"result\":0}\n");
	kernel_close(&k);
}
