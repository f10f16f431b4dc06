/* SPDX-License-Identifier: Apache-2.0 */
/* operations.c - what a program can do. Each takes its numbers as they come: any is allowed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "driver.h"
#include "worker.h"

#define CONTEXTS 4 /* the last is the primary one */
#define PRIMARY (CONTEXTS - 1)
#define STREAMS 4 /* a thread's own: 0 and 1 wait for the legacy stream, 2 and 3 do not */
#define SLOTS 4

struct driver cu;

/* Of this process. */
static struct {
	CUcontext ctx;
	CUfunction kernel[KERNELS];
} context[CONTEXTS];
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of this thread. */
static __thread unsigned now;   /* context */
static __thread unsigned fresh; /* grids so far */
static __thread CUstream stream[CONTEXTS][STREAMS];
static __thread CUevent event[CONTEXTS][SLOTS];
static __thread CUdeviceptr memory[CONTEXTS][2];
static __thread CUarray array[CONTEXTS];
static __thread CUgraph graph[SLOTS];
static __thread CUgraphExec exec[SLOTS];

int operations_begin(void)
{
	return driver_open() || cu.cuInit(0) ? -1 : 0;
}

/* spin ends when a flag is not 0, and mark counts one up. */
static const char ptx[] = ".version 7.0\n"
			  ".target sm_70\n"
			  ".address_size 64\n"
			  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
			  "// simgpu: entry=spin wait_param=0\n"
			  "// simgpu: entry=mark ns_per_unit=20 unit_param=0 count_param=1\n"
			  ".visible .entry work(.param .u32 units) { ret; }\n"
			  ".visible .entry spin(.param .u64 flag) { ret; }\n"
			  ".visible .entry mark(.param .u32 units, .param .u64 flag) { ret; }\n";
static const char *const kernel_name[KERNELS] = {"work", "spin", "mark"};

CUresult counted(const char *call, CUresult r)
{
	if (r == CUDA_ERROR_OUT_OF_MEMORY &&
	    __atomic_fetch_add(&shared->refused, 1, __ATOMIC_RELAXED) == 0)
		snprintf(shared->first, sizeof shared->first, "%s", call);
	return r;
}

CUfunction kernel_of(enum kernel k)
{
	return context[now].kernel[k];
}

static void forget(unsigned i)
{
	memset(stream[i], 0, sizeof stream[i]);
	memset(event[i], 0, sizeof event[i]);
	memset(memory[i], 0, sizeof memory[i]);
	array[i] = NULL;
}

static int load(CUfunction *kernel)
{
	CUmodule module;
	int bad = counted("cuModuleLoadData", cu.cuModuleLoadData(&module, ptx));

	for (unsigned k = 0; k < KERNELS && !bad; k++)
		bad = cu.cuModuleGetFunction(&kernel[k], module, kernel_name[k]);
	return bad;
}

/* context I: makes it current, and makes it where it is not there. */
void op_context(const unsigned *a)
{
	unsigned i = a[0] % CONTEXTS;

	pthread_mutex_lock(&context_lock);
	if (!context[i].ctx &&
	    (counted("context", i == PRIMARY ? cu.cuDevicePrimaryCtxRetain(&context[i].ctx, 0)
					     : cu.cuCtxCreate_v2(&context[i].ctx, 0, 0)) ||
	     cu.cuCtxSetCurrent(context[i].ctx) || load(context[i].kernel)))
		context[i].ctx = NULL;
	if (context[i].ctx && cu.cuCtxSetCurrent(context[i].ctx) == 0)
		now = i;
	pthread_mutex_unlock(&context_lock);
}

/* end I: destroys it, or gives the primary one up. Only of a process with one thread. */
static void op_end(const unsigned *a)
{
	unsigned i = a[0] % CONTEXTS;

	if (!context[i].ctx)
		return;
	if (i == PRIMARY)
		cu.cuDevicePrimaryCtxRelease_v2(0);
	else
		cu.cuCtxDestroy_v2(context[i].ctx);
	memset(&context[i], 0, sizeof context[i]);
	forget(i);
	op_context(&now);
}

static void op_retain(const unsigned *a)
{
	CUcontext ctx;

	(void)a;
	if (cu.cuDevicePrimaryCtxRetain(&ctx, 0) == 0)
		cu.cuDevicePrimaryCtxRelease_v2(0);
}

static void op_green(const unsigned *a)
{
	CUgreenCtx green;

	if (cu.cuGreenCtxCreate(&green, (void *)a, 0, 1) == 0)
		cu.cuGreenCtxDestroy(green);
}

/* Only of a process with one thread. */
static void op_reset(const unsigned *a)
{
	(void)a;
	cu.cuDevicePrimaryCtxReset_v2(0);
	if (!context[PRIMARY].ctx)
		return;
	cu.cuDevicePrimaryCtxRelease_v2(0);
	memset(&context[PRIMARY], 0, sizeof context[PRIMARY]);
	forget(PRIMARY);
	op_context(&now);
}

/* 0 to 3: its own; then NULL, legacy, per-thread. */
CUstream stream_of(unsigned i)
{
	static const CUstream known[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

	if (i >= STREAMS)
		return known[(i - STREAMS) % 3];
	if (!stream[now][i])
		cu.cuStreamCreate(&stream[now][i], i >= 2);
	return stream[now][i];
}

/* launch STREAM US GRID HOW; GRID 0: one that was not seen before */
static void op_launch(const unsigned *a)
{
	CUstream s = stream_of(a[0]);
	CUfunction f = kernel_of(WORK);
	unsigned units = a[1] * 1000 / NS_PER_UNIT, grid = a[2] ? a[2] : 100 + fresh++;
	void *params[] = {&units};

	switch (a[3] % 4) {
	case 0:
		cu.cuLaunchKernel(f, grid, 1, 1, 32, 1, 1, 0, s, params, NULL);
		break;
	case 1:
		cu.cuLaunchKernelEx(&(CUlaunchConfig){grid, 1, 1, 32, 1, 1, 0, s, NULL, 0}, f,
				    params, NULL);
		break;
	case 2:
		cu.cuLaunchCooperativeKernel(f, grid, 1, 1, 32, 1, 1, 0, s, params);
		break;
	case 3:
		cu.cuLaunchKernel_ptsz(f, grid, 1, 1, 32, 1, 1, 0, s, params, NULL);
	}
}

static int have_memory(void)
{
	CUDA_ARRAY_DESCRIPTOR d = {.Width = MIB, .Height = 4, .Format = 1, .NumChannels = 1};

	for (int i = 0; i < 2; i++)
		if (!memory[now][i] &&
		    counted("cuMemAlloc", cu.cuMemAlloc_v2(&memory[now][i], 4 * MIB)))
			return 0;
	return array[now] || cu.cuArrayCreate_v2(&array[now], &d) == 0;
}

/* copy STREAM KIND MIB */
static void op_copy(const unsigned *a)
{
	CUstream s = stream_of(a[0]);
	CUcontext c = context[now].ctx;
	size_t n = (size_t)(a[2] % 4 + 1) * MIB, one[2] = {n / 2, n / 2}, at = 0;
	uint64_t attr[8] = {0};
	static char host[4 * MIB];
	CUDA_MEMCPY2D area = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			      .WidthInBytes = 4096,
			      .Height = n / 4096,
			      .srcPitch = 4096,
			      .dstPitch = 4096};
	CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			     .WidthInBytes = 4096,
			     .Height = n / 4096,
			     .Depth = 1};
	CUDA_MEMCPY3D_BATCH_OP boxes[1] = {{.src = {.type = 1}, .dst = {.type = 1}}};
	CUdeviceptr to, from;

	if (!have_memory())
		return;
	to = memory[now][0];
	from = memory[now][1];
	area.srcDevice = box.srcDevice = boxes[0].src.op.ptr.ptr = from;
	area.dstDevice = box.dstDevice = boxes[0].dst.op.ptr.ptr = to;
	boxes[0].extent.width = 4096;
	boxes[0].extent.height = n / 4096;
	boxes[0].extent.depth = 1;
	switch (a[1] % 19) {
	case 0:
		cu.cuMemcpyDtoD_v2(to, from, n);
		break;
	case 1:
		cu.cuMemcpyDtoDAsync_v2(to, from, n, s);
		break;
	case 2:
		cu.cuMemcpy(to, from, n);
		break;
	case 3:
		cu.cuMemcpyAsync(to, from, n, s);
		break;
	case 4:
		cu.cuMemcpyPeer(to, c, from, c, n);
		break;
	case 5:
		cu.cuMemcpyPeerAsync(to, c, from, c, n, s);
		break;
	case 6:
		cu.cuMemcpy2D_v2(&area);
		break;
	case 7:
		cu.cuMemcpy2DAsync_v2(&area, s);
		break;
	case 8:
		cu.cuMemcpy3DAsync_v2(&box, s);
		break;
	case 9:
		cu.cuMemcpy3DPeerAsync(&box, s);
		break;
	case 10:
		cu.cuMemcpyAtoD_v2(to, array[now], 0, n);
		break;
	case 11:
		cu.cuMemcpyDtoA_v2(array[now], 0, to, n);
		break;
	case 12:
		cu.cuMemcpyBatchAsync_v2((CUdeviceptr[]){to, to + n / 2},
					 (CUdeviceptr[]){from, from + n / 2}, one, 2, attr, &at, 1,
					 s);
		break;
	case 13:
		cu.cuMemcpy3DBatchAsync_v2(1, boxes, 0, s);
		break;
	case 14:
		cu.cuMemcpyWithAttributesAsync(to, from, n, attr, s);
		break;
	case 15:
		cu.cuMemsetD8_v2(to, 1, n);
		break;
	case 16:
		cu.cuMemsetD8Async(to, 1, n, s);
		break;
	case 17:
		cu.cuMemcpyHtoDAsync_v2(to, host, n, s);
		break;
	case 18:
		cu.cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)host, n, s);
	}
}

static void op_wait(const unsigned *a)
{
	cu.cuStreamSynchronize(stream_of(a[0]));
}

void op_wait_all(const unsigned *a)
{
	(void)a;
	cu.cuCtxSynchronize();
}

/* poll STREAM US: looks so often whether the stream is done. */
static void op_poll(const unsigned *a)
{
	CUstream s = stream_of(a[0]);

	while (cu.cuStreamQuery(s) == CUDA_ERROR_NOT_READY && now_s() < worker_until)
		usleep(a[1]);
}

static void op_sleep(const unsigned *a)
{
	usleep(a[0]);
}

/* restream STREAM: destroys it; the next use makes it anew. */
static void op_restream(const unsigned *a)
{
	unsigned i = a[0] % STREAMS;

	if (stream[now][i])
		cu.cuStreamDestroy_v2(stream[now][i]);
	stream[now][i] = NULL;
}

static CUevent event_of(unsigned i)
{
	CUevent *e = &event[now][i % SLOTS];

	if (!*e)
		cu.cuEventCreate(e, i % 2 ? CU_EVENT_DISABLE_TIMING : 0);
	return *e;
}

static void op_record(const unsigned *a)
{
	cu.cuEventRecord(event_of(a[0]), stream_of(a[1]));
}

static void op_wait_event(const unsigned *a)
{
	cu.cuStreamWaitEvent(stream_of(a[1]), event_of(a[0]), 0);
}

static void op_event_done(const unsigned *a)
{
	if (a[1] % 2)
		cu.cuEventSynchronize(event_of(a[0]));
	else
		cu.cuEventQuery(event_of(a[0]));
}

static void host_sleeps(void *us)
{
	usleep((unsigned)(uintptr_t)us);
}

static void op_host(const unsigned *a)
{
	cu.cuLaunchHostFunc(stream_of(a[0]), host_sleeps, (void *)(uintptr_t)a[1]);
}

/* begin STREAM MODE GRAPH: a capture; MODE 3: again into that graph. */
static void op_begin(const unsigned *a)
{
	CUstream s = stream_of(a[0]);

	if (a[1] % 4 == 3 && graph[a[2] % SLOTS])
		cu.cuStreamBeginRecaptureToGraph(s, 0, graph[a[2] % SLOTS], NULL, NULL);
	else
		cu.cuStreamBeginCapture_v2(s, (int)(a[1] % 3));
}

static void drop_graph(unsigned i)
{
	if (exec[i])
		cu.cuGraphExecDestroy(exec[i]);
	if (graph[i])
		cu.cuGraphDestroy(graph[i]);
	exec[i] = NULL;
	graph[i] = NULL;
}

void set_graph(unsigned i, CUgraph g)
{
	i %= SLOTS;
	for (unsigned k = 0; k < SLOTS; k++) /* of a capture into it, it has a slot already */
		if (g == graph[k])
			graph[k] = NULL;
	drop_graph(i);
	graph[i] = g;
	if (counted("instantiate", cu.cuGraphInstantiateWithFlags(&exec[i], g, 0)))
		exec[i] = NULL;
}

/* capture STREAM GRAPH: the end of one, and what becomes of it. */
static void op_capture(const unsigned *a)
{
	CUgraph g = NULL;

	if (cu.cuStreamEndCapture(stream_of(a[0]), &g) == 0 && g)
		set_graph(a[1], g);
}

static void op_graph(const unsigned *a)
{
	unsigned i = a[1] % SLOTS;

	if (exec[i])
		counted("cuGraphLaunch", cu.cuGraphLaunch(exec[i], stream_of(a[0])));
}

static void op_drop(const unsigned *a)
{
	drop_graph(a[0] % SLOTS);
}

static void op_alloc(const unsigned *a)
{
	CUstream s = stream_of(a[0]);
	CUdeviceptr p;

	if (counted("cuMemAllocAsync", cu.cuMemAllocAsync(&p, MIB, s)) == 0)
		cu.cuMemFreeAsync(p, s);
}

const struct operation operations[] = {
	{"launch", op_launch},     {"copy", op_copy},
	{"wait", op_wait},         {"waitall", op_wait_all},
	{"poll", op_poll},         {"sleep", op_sleep},
	{"restream", op_restream}, {"context", op_context},
	{"end", op_end},           {"retain", op_retain},
	{"green", op_green},       {"reset", op_reset},
	{"record", op_record},     {"waitevent", op_wait_event},
	{"done", op_event_done},   {"host", op_host},
	{"begin", op_begin},       {"capture", op_capture},
	{"graph", op_graph},       {"drop", op_drop},
	{"alloc", op_alloc},       {"vary", op_vary},
	{"ring", op_ring},         {"memgraph", op_memgraph},
	{"create", op_create},     {"release", op_release},
	{"export", op_export},     {"import", op_import},
	{"map", op_map},           {"unmap", op_unmap},
	{"range", op_range},       {"shut", op_shut},
	{"give", op_give},         {"take", op_take},
	{"pool", op_pool},         {"fill", op_fill},
	{"share", op_share},
};

const unsigned noperations = sizeof operations / sizeof *operations;
