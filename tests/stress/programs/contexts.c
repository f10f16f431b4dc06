/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.c - a process that launches into two contexts in turn.
 *
 *   contexts [--libdir DIR] [--secs 3] [--streams created|default]
 *
 * Four kernels of 50 us into the one, then four of 400 us into the other, and so on, of
 * one function with one grid. Default streams of two contexts have the same handle.
 * Prints the work done per context, as a part of the time. For the simulated card,
 * on which it is known how long a kernel takes.
 */
#include <stdint.h>
#include <stdlib.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define NS_PER_UNIT 20.0
#define ROW 4

static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
			  ".visible .entry work(.param .u32 units) { ret; }\n";

static CUresult (*init)(unsigned);
static CUresult (*create)(CUcontext *, unsigned, CUdevice), (*set_current)(CUcontext);
static CUresult (*create_stream)(CUstream *, unsigned), (*wait_all)(void);
static CUresult (*load)(CUmodule *, const void *);
static CUresult (*function)(CUfunction *, CUmodule, const char *);
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  unsigned, CUstream, void **, void **);

struct place {
	CUcontext ctx;
	CUstream stream; /* NULL: the context's default one */
	CUfunction work;
	unsigned units; /* of one kernel */
	double done_ns;
};

static int find(void *cuda, const char *name, void *into)
{
	*(void **)into = dlsym(cuda, name);
	if (!*(void **)into)
		fprintf(stderr, "contexts: no %s\n", name);
	return *(void **)into == NULL;
}

static int begin(struct place *p, unsigned units, int created)
{
	CUmodule module;

	p->units = units;
	return create(&p->ctx, 0, 0) || set_current(p->ctx) || load(&module, ptx) ||
	       function(&p->work, module, "work") || (created && create_stream(&p->stream, 0));
}

static int row(struct place *p)
{
	void *params[] = {&p->units};

	if (set_current(p->ctx))
		return 1;
	for (int i = 0; i < ROW; i++)
		if (launch(p->work, 1, 1, 1, 32, 1, 1, 0, p->stream, params, NULL))
			return 1;
	p->done_ns += ROW * NS_PER_UNIT * p->units;
	return 0;
}

int main(int argc, char **argv)
{
	void *cuda = library(opt(argc, argv, "--libdir", ""), "libcuda.so.1");
	int created = strcmp(opt(argc, argv, "--streams", "created"), "created") == 0;
	double secs = atof(opt(argc, argv, "--secs", "3")), began, took;
	struct place place[2] = {0};

	if (!cuda || find(cuda, "cuInit", &init) || find(cuda, "cuCtxCreate_v2", &create) ||
	    find(cuda, "cuCtxSetCurrent", &set_current) ||
	    find(cuda, "cuCtxSynchronize", &wait_all) ||
	    find(cuda, "cuStreamCreate", &create_stream) || find(cuda, "cuModuleLoadData", &load) ||
	    find(cuda, "cuModuleGetFunction", &function) || find(cuda, "cuLaunchKernel", &launch))
		return 2;
	if (init(0) || begin(&place[0], 2500, created) || begin(&place[1], 20000, created))
		return 3;
	began = now_s();
	do {
		if (row(&place[0]) || row(&place[1]))
			return 4;
	} while (now_s() - began < secs);
	for (int i = 0; i < 2; i++)
		if (set_current(place[i].ctx) || wait_all())
			return 5;
	took = (now_s() - began) * 1e9;
	printf("{\"parts\":[%.4f,%.4f]}\n", place[0].done_ns / took, place[1].done_ns / took);
	return 0;
}
