/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opencl.c - keeps a card busy with OpenCL, on a real card and on the stub.
 *
 *   opencl [--how full|one|two|events|reads|fills|held|passed|asks] [--us 1000] [--depth 4] [--secs 2] [--start T] [--units N]
 *
 * full    DEPTH kernels of about US microseconds are always in the queue
 * one     one kernel, and clFinish
 * two     as full, in two queues by turns
 * events  one kernel, whose event is waited for
 * reads   one kernel, and a small read that waits for it
 * fills   as full, by clEnqueueFillBuffer
 * held    DEPTH kernels wait for a user event, which is set when all are there
 * passed  as full, in a queue that runs commands in any order, past a kernel that waits for a user event
 * asks    what calls take of which libvgpu must know that they do not wait: to ask for an event while
 *         another thread is in clFinish, to launch what a user event holds, and to launch in another
 *         queue then
 *
 * With --cuda US a thread of it launches CUDA's kernels of that length on the simulated card.
 *
 * Counts from the monotonic time T on, or from when it is ready. Prints a line of JSON: kernels a
 * second, what a kernel takes alone (by a measurement before, which a limit makes longer), of how many
 * units it is, which another run may be given (N), and on the stub the part of the time in which the
 * card was busy. Without -DLINKED it finds all by dlsym.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "../stress/programs/kernels.h"
#include "must.h"

#define FUNCTIONS(X)                                                                             \
	X(int, clGetPlatformIDs, (uint32_t, void **, uint32_t *))                                \
	X(int, clGetDeviceIDs, (void *, uint64_t, uint32_t, void **, uint32_t *))                \
	X(void *, clCreateContext, (void *, uint32_t, void **, void *, void *, int *))           \
	X(void *, clCreateCommandQueue, (void *, void *, uint64_t, int *))                       \
	X(void *, clCreateProgramWithSource, (void *, uint32_t, const char **, size_t *, int *)) \
	X(int, clBuildProgram, (void *, uint32_t, void **, const char *, void *, void *))        \
	X(void *, clCreateKernel, (void *, const char *, int *))                                 \
	X(int, clSetKernelArg, (void *, uint32_t, size_t, const void *))                         \
	X(void *, clCreateBuffer, (void *, uint64_t, size_t, void *, int *))                     \
	X(int, clEnqueueNDRangeKernel,                                                           \
	  (void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,   \
	   void *const *, void **))                                                              \
	X(int, clEnqueueFillBuffer,                                                              \
	  (void *, void *, const void *, size_t, size_t, size_t, uint32_t, void *const *,        \
	   void **))                                                                             \
	X(int, clEnqueueReadBuffer,                                                              \
	  (void *, void *, uint32_t, size_t, size_t, void *, uint32_t, void *const *, void **))  \
	X(void *, clCreateUserEvent, (void *, int *))                                            \
	X(int, clSetUserEventStatus, (void *, int))                                              \
	X(int, clGetEventInfo, (void *, uint32_t, size_t, void *, size_t *))                     \
	X(int, clReleaseEvent, (void *))                                                         \
	X(int, clWaitForEvents, (uint32_t, void *const *))                                       \
	X(int, clFlush, (void *))                                                                \
	X(int, clFinish, (void *))

#ifdef LINKED
#define X(result, name, params) result name params;
FUNCTIONS(X)
#undef X
#endif

static struct {
#define X(result, name, params) result(*name) params;
	FUNCTIONS(X)
#undef X
} cl;

#define DEVICE_GPU 4u
#define FILL (1u << 28)
#define THREADS (132u * 2048u)
#define PROBE 100000
#define DEPTH_MOST 1000

static const char *source = "__kernel void spin(uint n, __global uint *out)\n"
			    "{\n"
			    "	uint x = get_global_id(0);\n"
			    "	for (uint i = 0; i < n; i++)\n"
			    "		x = x * 1664525u + 1013904223u;\n"
			    "	if (x == 42u)\n"
			    "		out[0] = x;\n"
			    "}\n";

static void *context, *kernel, *buffer, *queue[2];
static uint32_t turns;

static void find(void)
{
#ifdef LINKED
#define X(result, name, params) cl.name = name;
#else
	void *lib = dlopen("libOpenCL.so.1", RTLD_NOW);

	must(!lib, "no libOpenCL.so.1");
#define X(result, name, params)                 \
	*(void **)&cl.name = dlsym(lib, #name); \
	must(!cl.name, #name);
#endif
	FUNCTIONS(X)
#undef X
}

/* properties: of the queues; 1: commands run in any order */
static void open_card(uint64_t properties)
{
	void *platforms[8], *device = NULL;
	uint32_t n = 0;
	int e;

	must(cl.clGetPlatformIDs(8, platforms, &n), "clGetPlatformIDs");
	for (uint32_t i = 0; i < n && !device; i++)
		cl.clGetDeviceIDs(platforms[i], DEVICE_GPU, 1, &device, NULL);
	must(!device, "no card");
	context = cl.clCreateContext(NULL, 1, &device, NULL, NULL, &e);
	must(e, "clCreateContext");
	for (int i = 0; i < 2; i++) {
		queue[i] = cl.clCreateCommandQueue(context, device, properties, &e);
		must(e, "clCreateCommandQueue");
	}
	buffer = cl.clCreateBuffer(context, 1, FILL, NULL, &e);
	must(e, "clCreateBuffer");
	kernel = cl.clCreateProgramWithSource(context, 1, &source, NULL, &e);
	must(e, "clCreateProgramWithSource");
	must(cl.clBuildProgram(kernel, 1, &device, "", NULL, NULL), "clBuildProgram");
	kernel = cl.clCreateKernel(kernel, "spin", &e);
	must(e, "clCreateKernel");
	must(cl.clSetKernelArg(kernel, 1, sizeof buffer, &buffer), "clSetKernelArg");
}

static void set_turns(uint32_t n)
{
	turns = n;
	must(cl.clSetKernelArg(kernel, 0, sizeof turns, &turns), "clSetKernelArg");
}

static void launch(void *q, uint32_t n, void *const *wait, void **event)
{
	static const size_t threads = THREADS;

	must(cl.clEnqueueNDRangeKernel(q, kernel, 1, NULL, &threads, NULL, n, n ? wait : NULL,
				       event),
	     "clEnqueueNDRangeKernel");
}

static void fill(void *q, void **event)
{
	static const uint32_t zero;

	must(cl.clEnqueueFillBuffer(q, buffer, &zero, sizeof zero, 0, FILL, 0, NULL, event),
	     "clEnqueueFillBuffer");
}

/* Seconds that one takes, the least of some. */
static double takes(void)
{
	double best = 1e9;

	for (int i = 0; i < 8; i++) {
		double began = now_s();

		launch(queue[0], 0, NULL, NULL);
		must(cl.clFinish(queue[0]), "clFinish");
		if (now_s() - began < best)
			best = now_s() - began;
	}
	return best;
}

static unsigned depth;
static bool fills;

/* In as many queues by turns, always with as many in flight. */
static unsigned long full(unsigned queues, double until)
{
	void *event[DEPTH_MOST] = {NULL};
	unsigned long n = 0;

	for (unsigned i = 0; now_s() < until; i = (i + 1) % depth) {
		if (event[i]) {
			must(cl.clWaitForEvents(1, &event[i]), "clWaitForEvents");
			must(cl.clReleaseEvent(event[i]), "clReleaseEvent");
			n++;
		}
		if (fills)
			fill(queue[i % queues], &event[i]);
		else
			launch(queue[i % queues], 0, NULL, &event[i]);
		cl.clFlush(queue[i % queues]);
	}
	for (unsigned i = 0; i < depth; i++)
		if (event[i])
			must(cl.clReleaseEvent(event[i]), "clReleaseEvent");
	return n;
}

static unsigned long one(const char *how, double until)
{
	unsigned long n = 0;
	uint32_t word;
	void *event;

	for (; now_s() < until; n++) {
		if (strcmp(how, "events") == 0) {
			launch(queue[0], 0, NULL, &event);
			must(cl.clWaitForEvents(1, &event), "clWaitForEvents");
			must(cl.clReleaseEvent(event), "clReleaseEvent");
			continue;
		}
		launch(queue[0], 0, NULL, NULL);
		if (strcmp(how, "reads") == 0)
			must(cl.clEnqueueReadBuffer(queue[0], buffer, 1, 0, sizeof word, &word, 0,
						    NULL, NULL),
			     "clEnqueueReadBuffer");
		else
			must(cl.clFinish(queue[0]), "clFinish");
	}
	return n;
}

static unsigned long held(double until)
{
	unsigned long n = 0;
	void *user;
	int e;

	for (; now_s() < until; n += depth) {
		user = cl.clCreateUserEvent(context, &e);
		must(e, "clCreateUserEvent");
		for (unsigned i = 0; i < depth; i++)
			launch(queue[0], i == 0, &user, NULL);
		must(cl.clSetUserEventStatus(user, 0), "clSetUserEventStatus");
		must(cl.clFinish(queue[0]), "clFinish");
		must(cl.clReleaseEvent(user), "clReleaseEvent");
	}
	return n;
}

/* A kernel is held in the queue all the time, and others run beside it. */
static unsigned long passed(double until)
{
	unsigned long n;
	void *user, *held;
	int e;

	user = cl.clCreateUserEvent(context, &e);
	must(e, "clCreateUserEvent");
	launch(queue[0], 1, &user, &held);
	n = full(1, until);
	must(cl.clSetUserEventStatus(user, 0), "clSetUserEventStatus");
	must(cl.clWaitForEvents(1, &held), "clWaitForEvents");
	must(cl.clReleaseEvent(held), "clReleaseEvent");
	must(cl.clReleaseEvent(user), "clReleaseEvent");
	return n;
}

/* What calls take that libvgpu makes while the program is in others, at most. */
static void *asked;
static double ask_most;

static void *ask(void *unused)
{
	int status = 1;

	(void)unused;
	for (double began = now_s(); status > 0; began = now_s()) {
		must(cl.clGetEventInfo(asked, 0x11D3, sizeof status, &status, NULL),
		     "clGetEventInfo");
		if (now_s() - began > ask_most)
			ask_most = now_s() - began;
	}
	return NULL;
}

static int asks(void)
{
	double began = now_s(), finish, enqueue, flush;
	pthread_t other;
	void *user;
	int e;

	launch(queue[0], 0, NULL, &asked);
	must(pthread_create(&other, NULL, ask, NULL), "pthread_create");
	must(cl.clFinish(queue[0]), "clFinish");
	finish = now_s() - began;
	pthread_join(other, NULL);
	user = cl.clCreateUserEvent(context, &e);
	must(e, "clCreateUserEvent");
	began = now_s();
	launch(queue[0], 1, &user, NULL);
	enqueue = now_s() - began;
	began = now_s();
	launch(queue[1], 0, NULL, NULL);
	must(cl.clFlush(queue[1]), "clFlush");
	flush = now_s() - began;
	must(cl.clSetUserEventStatus(user, 0), "clSetUserEventStatus");
	must(cl.clFinish(queue[0]), "clFinish");
	printf("{\"api\":\"opencl\",\"how\":\"asks\",\"finish_us\":%.0f,\"ask_most_us\":%.0f,"
	       "\"held_us\":%.0f,"
	       "\"beside_held_us\":%.0f}\n",
	       1e6 * finish, 1e6 * ask_most, 1e6 * enqueue, 1e6 * flush);
	return 0;
}

/* CUDA's kernels on the simulated card, one after another; seconds of them. */
static double cuda_us, cuda_until, cuda_secs;

static void *cuda(void *unused)
{
	struct kernels k;

	(void)unused;
	must(kernels_open(&k, ""), "CUDA");
	while (now_s() < cuda_until) {
		must(!kernels_launch(&k, 1, (uint32_t)(1000 * cuda_us / NS_PER_UNIT)),
		     "cuLaunchKernel");
		must(k.wait_for(k.stream), "cuStreamSynchronize");
		cuda_secs += 1e-6 * cuda_us;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t other;
	const char *how = opt(argc, argv, "--how", "full");
	double us = atof(opt(argc, argv, "--us", "1000")),
	       secs = atof(opt(argc, argv, "--secs", "2"));
	double start = atof(opt(argc, argv, "--start", "0")), alone, spent;
	double (*busy)(double, double) = NULL;
	uint32_t units = (uint32_t)atol(opt(argc, argv, "--units", "0"));
	unsigned long n;

	depth = (unsigned)atoi(opt(argc, argv, "--depth", "4"));
	must(depth < 1 || depth > DEPTH_MOST, "--depth");
	find();
	open_card(strcmp(how, "passed") == 0);
	*(void **)&busy = dlsym(dlopen("libOpenCL.so.1", RTLD_NOW), "stub_busy");
	set_turns(units ? units : busy ? (uint32_t)(1000 * us) : PROBE); /* the stub's are ns */
	if (!busy && !units) {
		takes();
		set_turns((uint32_t)(PROBE * us * 1e-6 / takes()));
	}
	alone = takes();
	if (strcmp(how, "asks") == 0)
		return asks();
	fills = strcmp(how, "fills") == 0;
	if (start == 0)
		start = now_s();
	cuda_us = atof(opt(argc, argv, "--cuda", "0"));
	cuda_until = start + secs;
	if (cuda_us > 0)
		must(pthread_create(&other, NULL, cuda, NULL), "pthread_create");
	if (fills || strcmp(how, "full") == 0 || strcmp(how, "two") == 0) {
		full(strcmp(how, "two") == 0 ? 2 : 1, start);
		start = now_s();
		n = full(strcmp(how, "two") == 0 ? 2 : 1, start + secs);
	} else if (strcmp(how, "held") == 0) {
		n = held(start + secs);
	} else if (strcmp(how, "passed") == 0) {
		n = passed(start + secs);
	} else {
		one(how, start);
		n = one(how, start + secs);
	}
	spent = now_s() - start;
	if (cuda_us > 0)
		pthread_join(other, NULL);
	printf("{\"api\":\"opencl\",\"how\":\"%s\",\"rate\":%.2f,\"alone_us\":%.1f,\"units\":%u,"
	       "\"part\":%.4f,\"cuda\":%.4f,"
	       "\"secs\":%.3f,\"n\":%lu}\n",
	       how, (double)n / spent, 1e6 * alone, turns,
	       busy ? busy(start, start + spent) / spent : (double)n * alone / spent,
	       cuda_secs / spent, spent, n);
	fflush(stdout);
	full(1, now_s() + (busy ? 0 : 1)); /* another may still count */
	return 0;
}
