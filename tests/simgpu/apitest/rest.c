// SPDX-License-Identifier: Apache-2.0
/* rest.c - cases about capture, finding functions, channel groups, faults. */
#define _GNU_SOURCE
#include "../model.h"
#include "apitest.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

void case_capture(void)
{
	CUstream s, t;
	CUgraph g;
	CUgraphExec x;
	CUevent a, b, join;
	CUfunction f;
	size_t n = 0;
	float ms;
	int status;

	start();
	f = function("us");
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&t, 1));
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	EQ(cuStreamBeginCapture_v2(NULL, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(cuStreamBeginCapture_v2(s, 0));
	OK(cuStreamIsCapturing(s, &status));
	EQ(status, CU_CAPTURE_ACTIVE);
	for (int i = 0; i < 10; i++)
		run_us(f, 999, s);
	OK(cuEventRecord(join, s));
	OK(cuStreamWaitEvent(t, join, 0)); /* t joins the capture */
	run_us(f, 999, t);
	OK(cuEventRecord(join, t));
	OK(cuStreamWaitEvent(s, join, 0));
	EQ(cuStreamEndCapture(t, &g), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	OK(cuStreamEndCapture(s, &g));
	OK(cuStreamIsCapturing(t, &status));
	EQ(status, CU_CAPTURE_NONE);
	OK(cuGraphGetNodes(g, NULL, &n));
	EQ(n, 11);
	OK(cuStreamQuery(s)); /* nothing has run */
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphDestroy(g));
	OK(cuEventRecord(a, s));
	OK(cuGraphLaunch(x, s));
	OK(cuGraphLaunch(x, s));
	OK(cuEventRecord(b, s));
	OK(cuStreamSynchronize(s));
	OK(cuEventElapsedTime(&ms, a, b));
	TOOK_US(ms * 1000, 22000, 22200);
	OK(cuGraphExecDestroy(x));
	/* a capture ends with its stream */
	OK(cuStreamBeginCapture_v2(s, 0));
	EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	OK(cuStreamDestroy_v2(s));
	OK(cuCtxSynchronize());
}

static void *query(void *event)
{
	static CUresult rc;

	rc = cuEventQuery(event);
	return &rc;
}

static CUresult query_elsewhere(CUevent e)
{
	pthread_t t;
	void *rc;

	EQ(pthread_create(&t, NULL, query, e), 0);
	EQ(pthread_join(t, &rc), 0);
	return *(CUresult *)rc;
}

/* A watcher that asks for an event spoils a global capture of another thread,
 * and no other kind. */
void case_capture_unsafe(void)
{
	CUdeviceptr p;
	CUstream s, blocking;
	CUgraph g;
	CUevent e;

	start();
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamCreate(&blocking, 0));
	OK(cuEventCreate(&e, 0));
	OK(cuEventRecord(e, NULL));
	OK(cuCtxSynchronize());
	OK(cuStreamBeginCapture_v2(s, 1)); /* thread-local */
	OK(query_elsewhere(e));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphDestroy(g));
	OK(cuStreamBeginCapture_v2(s, 0)); /* global */
	EQ(query_elsewhere(e), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuStreamBeginCapture_v2(s, 1));
	EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuStreamBeginCapture_v2(s, 2)); /* relaxed */
	OK(cuMemAlloc_v2(&p, 4096));
	OK(cuStreamEndCapture(s, &g));
	OK(cuStreamBeginCapture_v2(s, 2)); /* in which no mode lets anybody ask */
	OK(cuEventRecord(e, s));
	EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuStreamBeginCapture_v2(s, 2));
	EQ(cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EQ(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuEventRecord(e, NULL));
	OK(cuStreamBeginCapture_v2(blocking, 2));
	EQ(cuEventRecord(e, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	EQ(cuStreamEndCapture(blocking, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

void case_batch_op(void)
{
	CUstreamBatchMemOpParams ops[3] = {{.operation = 1, .value = 3},
					   {.operation = 6},
					   {.operation = 5, .value = 1ull << 33}};
	uint32_t *flag;
	CUstream s;
	void *h;

	start();
	OK(cuStreamCreate(&s, 1));
	OK(cuMemHostAlloc(&h, 4096, 2));
	flag = h;
	ops[0].address = (uintptr_t)h;
	ops[2].address = (uintptr_t)h + 8;
	OK(cuStreamBatchMemOp_v2(s, 3, ops, 0));
	sleep_ms(10);
	EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	STORE(flag, 3);
	OK(cuStreamSynchronize(s));
	EQ(LOAD((uint64_t *)(flag + 2)), 1ull << 33);
	ops[0].operation = 99;
	EQ(cuStreamBatchMemOp_v2(s, 1, ops, 0), CUDA_ERROR_INVALID_VALUE);
}

void case_library(void)
{
	char path[] = "/tmp/simgpu-library-XXXXXX";
	int fd = mkstemp(path), loaded;
	CUlibrary lib;
	CUkernel k;
	CUdeviceptr p;
	CUfunction f;
	size_t before, n = strlen(kernels_ptx);

	TRUE(fd >= 0);
	EQ(write(fd, kernels_ptx, n), (ssize_t)n);
	close(fd);
	start();
	before = free_bytes();
	EQ(cuLibraryLoadFromFile(&lib, "/nowhere/at.all", NULL, NULL, 0, NULL, NULL, 0),
	   CUDA_ERROR_FILE_NOT_FOUND);
	OK(cuLibraryLoadFromFile(&lib, path, NULL, NULL, 0, NULL, NULL, 0));
	unlink(path);
	OK(cuLibraryGetKernel(&k, lib, "us"));
	EQ(free_bytes(), before); /* no context has it yet */
	OK(cuFuncIsLoaded(&loaded, (CUfunction)k));
	EQ(loaded, 0);
	OK(cuKernelGetFunction(&f, k));
	EQ(before - free_bytes(), 34 * MIB);
	OK(cuLibraryGetGlobal(&p, &n, lib, "big"));
	EQ(n, 32 * MIB);
	run_us(f, 10, NULL);
	OK(cuCtxSynchronize());
	OK(cuLibraryUnload(lib));
	EQ(free_bytes(), before);
}

static void *proc(const char *name, int version, uint64_t flags, int want_status)
{
	void *p = NULL;
	int status = -1;
	CUresult rc = cuGetProcAddress_v2(name, &p, version, flags, &status);

	EQ(status, want_status);
	OK(rc); /* the status alone tells, as with driver 580 */
	return p;
}

void case_getproc(void)
{
#define SAME(p, fn) TRUE((uintptr_t)(p) == (uintptr_t)(fn))
	SAME(proc("cuMemAlloc", 12000, 0, 0), cuMemAlloc_v2);
	SAME(proc("cuCtxCreate", 3020, 0, 0), cuCtxCreate_v2);
	SAME(proc("cuCtxCreate", 11040, 0, 0), cuCtxCreate_v3);
	SAME(proc("cuCtxCreate", 13000, 0, 0), cuCtxCreate_v4);
	SAME(proc("cuDeviceGetUuid", 11000, 0, 0), cuDeviceGetUuid);
	SAME(proc("cuDeviceGetUuid", 12000, 0, 0), cuDeviceGetUuid_v2);
	SAME(proc("cuGetProcAddress", 11040, 0, 0), cuGetProcAddress);
	SAME(proc("cuGetProcAddress", 12000, 0, 0), cuGetProcAddress_v2);
	SAME(proc("cuLaunchKernel", 12000, 0, 0), cuLaunchKernel);
	SAME(proc("cuLaunchKernel", 12000, 1, 0), cuLaunchKernel);
	SAME(proc("cuLaunchKernel", 12000, 2, 0), cuLaunchKernel_ptsz);
	SAME(proc("cuLaunchKernel", 4000, 2, 2), NULL); /* per-thread only since 7.0 */
	SAME(proc("cuGraphInstantiate", 12000, 0, 0), cuGraphInstantiate_v2);
	SAME(proc("cuMemcpyHtoD", 12000, 2, 0), cuMemcpyHtoD_v2_ptds);
	SAME(proc("cuLaunchKernelEx", 12000, 2, 0), cuLaunchKernelEx_ptsz);
	SAME(proc("cuMemAllocAsync", 11010, 0, 2), NULL);
	SAME(proc("cuMemAlloc_v2", 12000, 0, 1), NULL); /* only base names */
	SAME(proc("cuNoSuchThing", 12000, 0, 1), NULL);
}

void case_child(void)
{
	CUdeviceptr p;
	int status;
	pid_t child;

	start();
	child = fork();
	if (child == 0) {
		EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_NOT_INITIALIZED);
		EQ(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		exit(0);
	}
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
	OK(cuMemAlloc_v2(&p, 4096)); /* the child's exit took nothing away */
	EQ(free_bytes(), 81920 * MIB - 502 * MIB);
}

/* This program's ioctl stands where a preloaded library's would. */
static struct {
	uint32_t client, parent, object, cls;
	int fd;
} seen[64];
static int nseen;
static uint64_t set_at_alloc;

static uint32_t control(int i, uint32_t cmd, uint64_t *us)
{
	struct {
		uint32_t client, object, cmd, flags;
		uint64_t params;
		uint32_t size, status;
	} a = {seen[i].client, seen[i].object, cmd, 0, (uintptr_t)us, 8, 0xffff};

	EQ(vgpu_rm_transport(seen[i].fd, _IOWR('F', 0x2A, a), &a), 0);
	return a.status;
}

int ioctl(int fd, unsigned long req, ...)
{
	uint32_t *p;
	va_list ap;
	int rc;

	va_start(ap, req);
	p = va_arg(ap, uint32_t *);
	va_end(ap);
	rc = vgpu_rm_transport(fd, req, p);
	if (rc == 0 && _IOC_TYPE(req) == 'F' && _IOC_NR(req) == 0x2B && p[10] == 0 && nseen < 64) {
		seen[nseen].client = p[0];
		seen[nseen].parent = p[1];
		seen[nseen].object = p[2];
		seen[nseen].cls = p[3];
		seen[nseen++].fd = fd;
		if (p[3] == 0xA06C && set_at_alloc)
			EQ(control(nseen - 1, 0xA06C0103, &set_at_alloc), 0);
	}
	return rc;
}

void case_groups(void)
{
	CUcontext c;
	uint64_t us;

	set_at_alloc = 7777;
	start();
	EQ(nseen, 6); /* root, device, four groups */
	EQ(seen[1].cls, 0x80);
	for (int i = 2; i < 6; i++) {
		EQ(seen[i].cls, 0xA06C);
		EQ(seen[i].parent, seen[1].object);
	}
	/* what was set at allocation is lost */
	EQ(control(2, 0xA06C0104, &us), 0);
	EQ(us, 2090);
	EQ(control(3, 0xA06C0104, &us), 0);
	EQ(us, 1024);
	us = 3000;
	EQ(control(2, 0xA06C0103, &us), 0);
	us = 0;
	EQ(control(2, 0xA06C0104, &us), 0);
	EQ(us, 3000);
	EQ(control(2, 0xA06C0103, &(uint64_t){0}), 0x1F);
	EQ(control(1, 0xA06C0104, &us), 0x24); /* a device has no slice */
	OK(cuCtxCreate_v2(&c, 0, 0));
	EQ(nseen, 10);
	EQ(control(6, 0xA06C0104, &us), 0);
	EQ(us, 2090);
	OK(cuCtxDestroy_v2(c));
	EQ(control(6, 0xA06C0104, &us), 0x33); /* its group is gone */
}

static struct sim_state *machine(void)
{
	struct sim_state *st = sim_open(getenv("SIMGPU_STATE"));

	TRUE(st);
	return st;
}

void case_slice_refused(void)
{
	struct sim_fault f = {.kind = SIM_FAULT_SLICES, .count = -1, .pid = getpid()};
	uint64_t us = 3000;

	start();
	EQ(sim_fault_add(machine(), &f), 0);
	EQ(control(2, 0xA06C0103, &us), 0x1B);
	EQ(control(2, 0xA06C0104, &us), 0);
	EQ(us, 2090);
}

void case_visible(void)
{
	char text[64], id[32];
	CUdevice d;
	int n;

	setenv("CUDA_VISIBLE_DEVICES", "3,1,9,0",
	       1); /* nothing after the first that is not there */
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	EQ(n, 2);
	OK(cuDeviceGetPCIBusId(id, sizeof(id), 0));
	EQ(strcmp(id, "0000:40:00.0"), 0);
	OK(cuDeviceGetByPCIBusId(&d, "0000:20:00.0"));
	EQ(d, 1);
	EQ(cuDeviceGetByPCIBusId(&d, "0000:10:00.0"), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGetName(text, sizeof(text), 0));
	EQ(strncmp(text, "NVIDIA", 6), 0);
}

void case_faults(void)
{
	struct sim_fault f = {.kind = SIM_FAULT_CODE,
			      .code = 2,
			      .count = 2,
			      .call = "cuMemAlloc",
			      .pid = getpid()};
	struct sim_state *st;
	CUdeviceptr p;

	start();
	st = machine();
	EQ(sim_fault_add(st, &f), 0);
	OK(cuMemAllocManaged(&p, 4096, 1)); /* another call */
	OK(cuMemAllocAsync(&p, 4096, NULL));
	EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_OUT_OF_MEMORY);
	EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc_v2(&p, 4096));
	EQ(st->nfaults, 0);
	f = (struct sim_fault){.kind = SIM_FAULT_SLOW,
			       .slow_ns = 30000000,
			       .count = 1,
			       .call = "*"};
	EQ(sim_fault_add(st, &f), 0);
	uint64_t before = sim_now();
	OK(cuCtxSynchronize());
	TRUE(sim_now() - before >= 30000000);
}

void case_lost(void)
{
	struct sim_state *st;
	CUdeviceptr p;

	start();
	run_us(function("us"), 1000000, NULL);
	st = machine();
	st->card[0].lost = CUDA_ERROR_UNKNOWN;
	EQ(cuMemAlloc_v2(&p, 4096), CUDA_ERROR_UNKNOWN);
	EQ(cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
	st->card[0].lost = 0;
	OK(cuMemAlloc_v2(&p, 4096));
}
