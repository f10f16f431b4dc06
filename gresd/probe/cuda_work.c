/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_work.c - work that keeps a card busy. */
#include "cuda.h"

#include <poll.h>
#include <unistd.h>

#include "cuda_driver.h"

/* What a kernel counts to: about a millisecond. Where it is longer, the card preempts it. */
#define COUNT 100000u
/* Launches that are in the queue: a host that is late by so many milliseconds is seen by
 * nobody. At the end, they are what the card still has to do. */
#define AHEAD 32
/* More than any test takes, should the parent have been stopped. */
#define LAUNCHES_MAX 20000
/* CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING */
#define EVENT_FLAGS 3u

/* It counts in registers, so that it takes nothing of the card but time. A simulated card
 * reads the comment. */
static const char ptx[] = ".version 6.0\n"
			  ".target sm_50\n"
			  ".address_size 64\n"
			  "// simgpu: entry=vgpu_slice ns_per_unit=10 unit_param=0\n"
			  ".visible .entry vgpu_slice(\n"
			  "	.param .u32 count,\n"
			  "	.param .u64 sink\n"
			  ")\n"
			  "{\n"
			  "	.reg .pred %p<2>;\n"
			  "	.reg .b32 %r<4>;\n"
			  "	.reg .b64 %rd<2>;\n"
			  "	ld.param.u32 %r1, [count];\n"
			  "	ld.param.u64 %rd1, [sink];\n"
			  "	mov.u32 %r2, %tid.x;\n"
			  "	mov.u32 %r3, 0;\n"
			  "LOOP:\n"
			  "	mad.lo.u32 %r2, %r2, 1664525, 1013904223;\n"
			  "	mad.lo.u32 %r2, %r2, 22695477, 12345;\n"
			  "	add.u32 %r3, %r3, 1;\n"
			  "	setp.lt.u32 %p1, %r3, %r1;\n"
			  "	@%p1 bra LOOP;\n"
			  /* never true, but the assembler cannot know: keeps the loop alive */
			  "	setp.eq.u32 %p1, %r1, 4294967295;\n"
			  "	@%p1 st.global.u32 [%rd1], %r2;\n"
			  "	ret;\n"
			  "}\n";

static void *function, *events[AHEAD];

static int prepare(char *why, size_t size)
{
	void *context, *module;
	int device;

	TRY(cuInit, 0);
	TRY(cuDeviceGet, &device, 0);
	TRY(cuDevicePrimaryCtxRetain, &context, device);
	TRY(cuCtxSetCurrent, context);
	TRY(cuModuleLoadData, &module, ptx);
	TRY(cuModuleGetFunction, &function, module, "vgpu_slice");
	for (int i = 0; i < AHEAD; i++)
		TRY(cuEventCreate, &events[i], EVENT_FLAGS);
	return 0;
}

/* Nothing is ever written to it: what there is to hear of it is its end. */
static int input_closed(void)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

	return poll(&in, 1, 0) != 0;
}

int libcuda_work(const char *library, char *why, size_t size)
{
	unsigned count = COUNT;
	unsigned long long sink = 0;
	void *params[] = {&count, &sink};

	if (libcuda_load(library, why, size) || prepare(why, size))
		return -1;
	for (int i = 0; i < LAUNCHES_MAX && !input_closed(); i++) {
		void *event = events[i % AHEAD];

		if (i >= AHEAD)
			TRY(cuEventSynchronize, event);
		TRY(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
		TRY(cuEventRecord, event, NULL);
	}
	TRY(cuCtxSynchronize);
	return 0;
}
