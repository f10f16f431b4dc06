/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.c - threads of one process that do everything at once which the library
 * looks at: memory of every kind, launches, streams, events, graphs, modules,
 * contexts, questions to CUDA and NVML, and a child now and then.
 *
 *   threads [--threads 8] [--secs 5] [--seed 1] [--libdir DIR]
 *
 * Made for the sanitizers (tests/sanitize); it runs on a real card, too. Prints one
 * JSON line; exit status 1 when a call gave an error that is none of out-of-memory
 * and what the call may give beside others, or when nothing was tested.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

#define MAX_THREADS 64
#define MIB (1ull << 20)
#define NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING, also of a thread's capture */
#define RELAXED 2       /* CU_STREAM_CAPTURE_MODE_RELAXED */

/* Found with dlsym, as a runtime does; _v2 where the driver's header says so. */
#define CALLS(X)                                                                                  \
	X(init, "cuInit", (unsigned))                                                             \
	X(retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                            \
	X(create_context, "cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice))                    \
	X(destroy_context, "cuCtxDestroy_v2", (CUcontext))                                        \
	X(use, "cuCtxSetCurrent", (CUcontext))                                                    \
	X(sync_context, "cuCtxSynchronize", (void))                                               \
	X(info, "cuMemGetInfo_v2", (size_t *, size_t *))                                          \
	X(total, "cuDeviceTotalMem_v2", (size_t *, CUdevice))                                     \
	X(alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                        \
	X(pitch, "cuMemAllocPitch_v2", (CUdeviceptr *, size_t *, size_t, size_t, unsigned))       \
	X(managed, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned))                        \
	X(release, "cuMemFree_v2", (CUdeviceptr))                                                 \
	X(alloc_async, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))                      \
	X(alloc_pool, "cuMemAllocFromPoolAsync", (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
	X(free_async, "cuMemFreeAsync", (CUdeviceptr, CUstream))                                  \
	X(create_pool, "cuMemPoolCreate", (CUmemoryPool *, const CUmemPoolProps *))               \
	X(trim_pool, "cuMemPoolTrimTo", (CUmemoryPool, size_t))                                   \
	X(destroy_pool, "cuMemPoolDestroy", (CUmemoryPool))                                       \
	X(create, "cuMemCreate",                                                                  \
	  (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,                   \
	   unsigned long long))                                                                   \
	X(release_handle, "cuMemRelease", (CUmemGenericAllocationHandle))                         \
	X(reserve, "cuMemAddressReserve",                                                         \
	  (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                       \
	X(unreserve, "cuMemAddressFree", (CUdeviceptr, size_t))                                   \
	X(map, "cuMemMap",                                                                        \
	  (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))        \
	X(unmap, "cuMemUnmap", (CUdeviceptr, size_t))                                             \
	X(array, "cuArrayCreate_v2", (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                  \
	X(destroy_array, "cuArrayDestroy", (CUarray))                                             \
	X(load, "cuModuleLoadData", (CUmodule *, const void *))                                   \
	X(unload, "cuModuleUnload", (CUmodule))                                                   \
	X(function, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                \
	X(global, "cuModuleGetGlobal_v2", (CUdeviceptr *, size_t *, CUmodule, const char *))      \
	X(launch, "cuLaunchKernel",                                                               \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,      \
	   CUstream, void **, void **))                                                           \
	X(launch_ex, "cuLaunchKernelEx", (const CUlaunchConfig *, CUfunction, void **, void **))  \
	X(set, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                 \
	X(copy, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))             \
	X(host_function, "cuLaunchHostFunc", (CUstream, void (*)(void *), void *))                \
	X(stream, "cuStreamCreate", (CUstream *, unsigned))                                       \
	X(destroy_stream, "cuStreamDestroy_v2", (CUstream))                                       \
	X(sync_stream, "cuStreamSynchronize", (CUstream))                                         \
	X(query, "cuStreamQuery", (CUstream))                                                     \
	X(wait, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                               \
	X(event, "cuEventCreate", (CUevent *, unsigned))                                          \
	X(destroy_event, "cuEventDestroy_v2", (CUevent))                                          \
	X(record, "cuEventRecord", (CUevent, CUstream))                                           \
	X(sync_event, "cuEventSynchronize", (CUevent))                                            \
	X(begin, "cuStreamBeginCapture_v2", (CUstream, int))                                      \
	X(end, "cuStreamEndCapture", (CUstream, CUgraph *))                                       \
	X(destroy_graph, "cuGraphDestroy", (CUgraph))                                             \
	X(instantiate, "cuGraphInstantiateWithFlags",                                             \
	  (CUgraphExec *, CUgraph, unsigned long long))                                           \
	X(launch_graph, "cuGraphLaunch", (CUgraphExec, CUstream))                                 \
	X(destroy_exec, "cuGraphExecDestroy", (CUgraphExec))                                      \
	X(address, "cuGetProcAddress_v2", (const char *, void **, int, uint64_t, int *))

static struct {
#define X(member, name, params) CUresult(*member) params;
	CALLS(X)
#undef X
} cu;
static nvmlReturn_t (*nvml_memory)(nvmlDevice_t, nvmlMemory_t *);
static nvmlReturn_t (*nvml_processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
static nvmlDevice_t device;
static CUcontext primary;
static CUstream shared; /* of all threads */
static CUmodule common;
static CUfunction work;
static void *cuda;
static double until;
static uint64_t host_calls;

/* The simulated card reads the first comment line; see tests/simgpu/libcuda/ptx.c. */
static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			  "// simgpu: entry=some ns_per_unit=1000 unit_param=0\n"
			  ".visible .global .align 8 .b8 big[4194304];\n"
			  ".visible .entry some(.param .u32 n)\n{ ret; }\n";

struct thread {
	pthread_t id;
	unsigned seed;
	CUstream stream;
	CUevent event;
	CUmemoryPool pool;
	uint64_t done, refused, odd;
};

static unsigned pick(struct thread *t, unsigned n)
{
	return (unsigned)rand_r(&t->seed) % n;
}

/* Whether the call went well; a refusal is no mistake. */
static int well(struct thread *t, CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS) {
		t->done++;
		return 1;
	}
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		t->refused++;
		return 0;
	}
	if (t->odd++ < 3)
		fprintf(stderr, "threads: %s: %d\n", what, r);
	return 0;
}
#define WELL(call) well(t, cu.call, #call)

static CUstream some_stream(struct thread *t)
{
	CUstream all[] = {t->stream, t->stream, shared, NULL, CU_STREAM_PER_THREAD};

	return all[pick(t, 5)];
}

static void count_call(void *to)
{
	__atomic_add_fetch((uint64_t *)to, 1, __ATOMIC_RELAXED);
}

static void linear(struct thread *t)
{
	size_t n = (pick(t, 64) + 1) * 2 * MIB, row;
	CUdeviceptr p = 0;
	int ok;

	switch (pick(t, 3)) {
	case 0:
		ok = WELL(alloc(&p, n));
		break;
	case 1:
		ok = WELL(pitch(&p, &row, MIB, n / MIB, 16));
		break;
	default:
		ok = WELL(managed(&p, n, CU_MEM_ATTACH_GLOBAL));
	}
	if (!ok)
		return;
	WELL(set(p, 1, MIB, t->stream));
	WELL(copy(p, p + MIB, MIB, t->stream));
	WELL(sync_stream(t->stream));
	WELL(release(p));
}

static void ordered(struct thread *t)
{
	size_t n = (pick(t, 16) + 1) * 2 * MIB;
	CUdeviceptr p = 0;

	if (pick(t, 2) ? WELL(alloc_async(&p, n, t->stream))
		       : WELL(alloc_pool(&p, n, t->pool, t->stream)))
		WELL(free_async(p, t->stream));
	if (pick(t, 4) == 0)
		WELL(trim_pool(t->pool, 0));
}

static void own_pool(struct thread *t)
{
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool old = t->pool;

	if (!WELL(create_pool(&t->pool, &props)))
		return;
	if (old) {
		WELL(sync_stream(t->stream));
		WELL(destroy_pool(old));
	}
}

static void mapped(struct thread *t)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t n = (pick(t, 16) + 1) * 2 * MIB;
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;

	if (!WELL(create(&h, n, &prop, 0)))
		return;
	if (WELL(reserve(&p, n, 0, 0, 0))) {
		if (WELL(map(p, n, 0, h, 0)))
			WELL(unmap(p, n));
		WELL(unreserve(p, n));
	}
	WELL(release_handle(h));
}

static void arrays(struct thread *t)
{
	CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, 0x20, 4};
	CUarray a;

	if (WELL(array(&a, &d)))
		WELL(destroy_array(a));
}

static void launches(struct thread *t)
{
	CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, some_stream(t), NULL, 0};
	unsigned us = pick(t, 300);
	void *params[] = {&us};

	for (unsigned i = pick(t, 8) + 1; i; i--)
		if (i % 2)
			WELL(launch(work, 1, 1, 1, 32, 1, 1, 0, c.hStream, params, NULL));
		else
			WELL(launch_ex(&c, work, params, NULL));
	if (pick(t, 3) == 0)
		WELL(host_function(t->stream, count_call, &host_calls));
	switch (pick(t, 6)) {
	case 0:
		WELL(sync_stream(c.hStream));
		break;
	case 1:
		WELL(sync_context());
		break;
	case 2:
		WELL(record(t->event, t->stream));
		WELL(wait(shared, t->event, 0));
		WELL(sync_event(t->event));
		break;
	default:
		(void)cu.query(t->stream); /* either answer */
	}
}

static void own_stream(struct thread *t)
{
	WELL(destroy_stream(t->stream)); /* work may be under way */
	WELL(stream(&t->stream, NON_BLOCKING));
	WELL(destroy_event(t->event));
	WELL(event(&t->event, 0));
}

static void graphs(struct thread *t)
{
	unsigned us = 20;
	void *params[] = {&us};
	CUgraph g = NULL;
	CUgraphExec e;
	CUdeviceptr p = 0;

	if (!WELL(begin(t->stream, RELAXED)))
		return;
	WELL(launch(work, 1, 1, 1, 32, 1, 1, 0, t->stream, params, NULL));
	if (pick(t, 2) && WELL(alloc_async(&p, 2 * MIB, t->stream)))
		WELL(free_async(p, t->stream));
	if (!WELL(end(t->stream, &g)) || !g)
		return;
	if (WELL(instantiate(&e, g, 0))) {
		for (unsigned i = pick(t, 3) + 1; i; i--)
			WELL(launch_graph(e, t->stream));
		WELL(sync_stream(t->stream));
		WELL(destroy_exec(e));
	}
	WELL(destroy_graph(g));
}

static void modules(struct thread *t)
{
	CUdeviceptr p;
	CUmodule m;
	size_t n;

	if (!WELL(load(&m, ptx)))
		return;
	WELL(global(&p, &n, m, "big"));
	WELL(unload(m));
}

static void contexts(struct thread *t)
{
	CUcontext c;
	CUdeviceptr p;

	if (!WELL(create_context(&c, 0, 0)))
		return;
	if (WELL(alloc(&p, 4 * MIB)) && pick(t, 2))
		WELL(release(p)); /* else with its context */
	WELL(destroy_context(c));
	WELL(use(primary));
}

static void questions(struct thread *t)
{
	static const char *const names[] = {"cuMemAlloc", "cuLaunchKernel", "cuMemGetInfo",
					    "cuGraphLaunch", "cuInit"};
	nvmlProcessInfo_t processes[64];
	nvmlMemory_t m;
	unsigned n = 64;
	size_t free_now, all;
	void *f;
	int status;

	WELL(info(&free_now, &all));
	WELL(total(&all, 0));
	WELL(address(names[pick(t, 5)], &f, 12080, 0, &status));
	well(t, dlsym(cuda, "cuMemAlloc_v2") == (void *)cu.alloc ? 0 : -1, "dlsym");
	if (nvml_memory)
		well(t, nvml_memory(device, &m), "nvmlDeviceGetMemoryInfo");
	if (nvml_processes && pick(t, 4) == 0)
		well(t, nvml_processes(device, &n, processes), "nvmlDeviceGetComputeRunning…");
}

/* CUDA is of no use in a child; the library must know that it is one. */
static void child(struct thread *t)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		CUdeviceptr p;

		_exit(cu.alloc(&p, MIB) == CUDA_SUCCESS);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	well(t, status == 0 ? 0 : -1, "fork");
}

static void *run(void *of)
{
	static void (*const often[])(struct thread *) = {
		linear, ordered,  mapped,  arrays, launches, launches,  launches,
		graphs, own_pool, modules, linear, ordered,  questions, questions,
	};
	struct thread *t = of;

	WELL(use(primary));
	WELL(stream(&t->stream, NON_BLOCKING));
	WELL(event(&t->event, 0));
	own_pool(t);
	while (now_s() < until) {
		unsigned n = pick(t, 1000);

		if (n < 5)
			child(t);
		else if (n < 15)
			contexts(t);
		else if (n < 60)
			own_stream(t);
		else
			often[n % (sizeof often / sizeof *often)](t);
	}
	WELL(sync_stream(t->stream));
	WELL(destroy_pool(t->pool));
	WELL(destroy_event(t->event));
	WELL(destroy_stream(t->stream));
	return NULL;
}

static int open_libraries(const char *libdir)
{
	nvmlReturn_t (*nvml_init)(void), (*by_index)(unsigned, nvmlDevice_t *);
	void *nvml = library(libdir, "libnvidia-ml.so.1");

	cuda = library(libdir, "libcuda.so.1");
	if (!cuda)
		return -1;
#define X(member, name, params)                            \
	*(void **)&cu.member = dlsym(cuda, name);          \
	if (!cu.member) {                                  \
		fprintf(stderr, "threads: no %s\n", name); \
		return -1;                                 \
	}
	CALLS(X)
#undef X
	if (!nvml)
		return 0;
	*(void **)&nvml_init = dlsym(nvml, "nvmlInit_v2");
	*(void **)&by_index = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	if (!nvml_init || !by_index || nvml_init() != 0 || by_index(0, &device) != 0)
		return -1;
	*(void **)&nvml_memory = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml_processes = dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
	return 0;
}

int main(int argc, char **argv)
{
	int n = atoi(opt(argc, argv, "--threads", "8"));
	unsigned seed = (unsigned)atoi(opt(argc, argv, "--seed", "1"));
	struct thread threads[MAX_THREADS] = {0}, *t = threads;
	uint64_t done = 0, refused = 0, odd = 0;

	if (n < 1 || n > MAX_THREADS || open_libraries(opt(argc, argv, "--libdir", "")) != 0) {
		fprintf(stderr, "threads: want 1 to %d threads, and CUDA\n", MAX_THREADS);
		return 3;
	}
	if (!WELL(init(0)) || !WELL(retain(&primary, 0)) || !WELL(use(primary)) ||
	    !WELL(stream(&shared, NON_BLOCKING)) || !WELL(load(&common, ptx)) ||
	    !WELL(function(&work, common, "some")))
		return 3;
	until = now_s() + atof(opt(argc, argv, "--secs", "5"));
	for (int i = 0; i < n; i++) {
		threads[i].seed = seed * 1000 + (unsigned)i;
		if (pthread_create(&threads[i].id, NULL, run, &threads[i]) != 0)
			return 3;
	}
	for (int i = 0; i < n; i++) {
		pthread_join(threads[i].id, NULL);
		done += threads[i].done;
		refused += threads[i].refused;
		odd += threads[i].odd;
	}
	printf("{\"bench\":\"threads\",\"threads\":%d,\"done\":%llu,\"refused\":%llu,"
	       "\"odd_errors\":%llu,\"host_calls\":%llu}\n",
	       n, (unsigned long long)done, (unsigned long long)refused, (unsigned long long)odd,
	       (unsigned long long)__atomic_load_n(&host_calls, __ATOMIC_RELAXED));
	return odd || done < 1000 ? 1 : 0;
}
