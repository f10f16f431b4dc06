// SPDX-License-Identifier: Apache-2.0
/* card.c - brings the kernels onto the card and launches them. */
#define _GNU_SOURCE
#include "load.h"

#include <stdlib.h>
#include <string.h>

#define MULTIPROCESSORS 16 /* device attribute */
#define SPIN_BLOCK 512
#define PRODUCT_BLOCK 256
#define PRODUCT_N 1280
#define PRODUCT_PARTS 32 /* how often a product tells its progress */
#define UNIT_NS 20000.0
#define COUNTERS 64 /* bytes, for each stream */
#define STREAMS 2

/* The text of kernels.ptx. */
extern const char kernels_ptx[];
__asm__(".section .rodata\n"
	".global kernels_ptx\n"
	"kernels_ptx:\n"
	".incbin \"load/kernels.ptx\"\n"
	".byte 0\n"
	".previous\n");

static void open_product(struct card *c)
{
	size_t bytes = PRODUCT_N * PRODUCT_N * sizeof(float);
	float *m = malloc(bytes);
	uint32_t x = 12345;

	if (!m)
		die("product", "out of host memory");
	for (size_t i = 0; i < PRODUCT_N * PRODUCT_N; i++) {
		x = x * 1664525u + 1013904223u;
		m[i] = (float)(x >> 8) / 16777216.0f - 0.5f;
	}
	must(cu.MemAlloc(&c->a, bytes), "cuMemAlloc");
	must(cu.MemAlloc(&c->b, bytes), "cuMemAlloc");
	must(cu.MemAlloc(&c->c, bytes), "cuMemAlloc");
	must(cu.MemcpyHtoD(c->a, m, bytes), "cuMemcpyHtoD");
	must(cu.MemcpyHtoD(c->b, m, bytes), "cuMemcpyHtoD");
	free(m);
}

void card_open(struct card *c, unsigned inner, unsigned sms)
{
	static const char zero[STREAMS * COUNTERS];
	CUdevice device;
	CUcontext ctx;
	CUmodule module;

	must(cu.DeviceGet(&device, 0), "cuDeviceGet");
	must(cu.DevicePrimaryCtxRetain(&ctx, device), "cuDevicePrimaryCtxRetain");
	must(cu.CtxSetCurrent(ctx), "cuCtxSetCurrent");
	must(cu.DeviceGetAttribute(&c->sms, MULTIPROCESSORS, device), "cuDeviceGetAttribute");
	must(cu.ModuleLoadData(&module, kernels_ptx), "cuModuleLoadData");
	must(cu.ModuleGetFunction(&c->spin, module, "spin"), "cuModuleGetFunction");
	must(cu.ModuleGetFunction(&c->product, module, "product"), "cuModuleGetFunction");
	must(cu.ModuleGetFunction(&c->empty, module, "empty"), "cuModuleGetFunction");
	must(cu.ModuleGetFunction(&c->beat, module, "beat"), "cuModuleGetFunction");
	must(cu.StreamCreate(&c->stream, 1), "cuStreamCreate");
	must(cu.MemAlloc(&c->counters, sizeof(zero)), "cuMemAlloc");
	must(cu.MemcpyHtoD(c->counters, zero, sizeof(zero)), "cuMemcpyHtoD");
	/* portable and mapped; with unified addresses the card uses the same one */
	must(cu.MemHostAlloc((void **)&c->progress, STREAMS * sizeof(*c->progress), 3),
	     "cuMemHostAlloc");
	memset((void *)c->progress, 0, STREAMS * sizeof(*c->progress));
	c->grid = 2 * (sms ? sms : (unsigned)c->sms);
	c->inner = inner;
	open_product(c);
}

void card_launch(struct card *c, const struct shape *s)
{
	CUdeviceptr host = (CUdeviceptr)(uintptr_t)c->progress;
	CUdeviceptr kernels = (CUdeviceptr)(uintptr_t)&c->progress->kernels;
	unsigned units = s->units, watch = s->kind == PERSISTENT, n = PRODUCT_N, every;
	void *spin[] = {&units, &c->inner, &watch, &c->counters, &host, &kernels};
	void *product[] = {&units, &n, &every, &c->counters, &host, &kernels, &c->a, &c->b, &c->c};

	if (s->kind == PRODUCT) {
		c->grid = (PRODUCT_N / 16) * (PRODUCT_N / 16);
		every = c->grid / PRODUCT_PARTS;
		must(cu.LaunchKernel(c->product, c->grid, 1, 1, PRODUCT_BLOCK, 1, 1, 0, c->stream,
				     product, NULL),
		     "cuLaunchKernel");
		return;
	}
	must(cu.LaunchKernel(c->spin, c->grid, 1, 1, SPIN_BLOCK, 1, 1, 0, c->stream, spin, NULL),
	     "cuLaunchKernel");
}

unsigned card_beat_units(double us)
{
	return us * 1000 < UNIT_NS ? 1 : (unsigned)(us * 1000 / UNIT_NS);
}

/* A unit is cut short or made longer by its inner rounds, so that kernels of any length
 * are made of whole units. Each stream counts for itself: their kernels may overlap. */
void card_beat(struct card *c, double us, unsigned stream)
{
	double ns = us * 1000;
	unsigned units = card_beat_units(us);
	unsigned inner = (unsigned)(c->inner * ns / (UNIT_NS * units) + 0.5), length = (unsigned)ns;
	CUdeviceptr counters = c->counters + stream * COUNTERS;
	CUdeviceptr host = (CUdeviceptr)(uintptr_t)&c->progress[stream];
	CUdeviceptr kernels = (CUdeviceptr)(uintptr_t)&c->progress[stream].kernels;
	void *params[] = {&length, &units, &inner, &counters, &host, &kernels};

	if (!inner)
		inner = 1;
	must(cu.LaunchKernel(c->beat, c->grid, 1, 1, SPIN_BLOCK, 1, 1, 0,
			     stream ? c->second : c->stream, params, NULL),
	     "cuLaunchKernel");
}

uint32_t card_kernels(const struct card *c)
{
	return c->progress[0].kernels + c->progress[1].kernels;
}

/* A long kernel, so that its way to the card does not count; the shortest of
 * several. */
static double unit_ns(struct card *c)
{
	const struct shape one = {"calibration", SPIN, 1, 1, 1}, many = {"", SPIN, 500, 1, 1};
	double best = 0;

	for (int i = 0; i < 5; i++) {
		uint64_t t;
		double took;

		card_launch(c, &one);
		must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
		t = now_ns();
		card_launch(c, &many);
		must(cu.StreamSynchronize(c->stream), "cuStreamSynchronize");
		took = (double)(now_ns() - t) / many.units;
		if (!i || took < best)
			best = took;
	}
	return best;
}

unsigned card_calibrate(struct card *c)
{
	uint64_t until = now_ns() + 300000000; /* an idle card runs slowly at first */

	while (now_ns() < until)
		unit_ns(c);
	for (int i = 0; i < 3; i++) {
		double t = unit_ns(c), inner = c->inner * UNIT_NS / t;

		if (t < 0.95 * UNIT_NS || t > 1.05 * UNIT_NS)
			c->inner = inner < 1 ? 1 : (unsigned)inner;
	}
	return c->inner;
}
