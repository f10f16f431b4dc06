/* SPDX-License-Identifier: Apache-2.0 */
/* apitest.h - checks of the simulated driver, one case a run: apitest <case>. */
#ifndef SIMGPU_APITEST_H
#define SIMGPU_APITEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../cuda_abi.h"

#define MIB (1ull << 20)

void failed(const char *file, int line, const char *what, long long got, long long want);

#define EQ(got, want)                                                          \
	do {                                                                   \
		long long g_ = (long long)(got), w_ = (long long)(want);       \
		if (g_ != w_)                                                  \
			failed(__FILE__, __LINE__, #got " == " #want, g_, w_); \
	} while (0)
#define OK(call) EQ(call, CUDA_SUCCESS)
#define TRUE(what) EQ(!!(what), 1)
/* words that the card writes or reads meanwhile */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
/* a <= got <= b */
#define WITHIN(got, a, b)                                                                     \
	do {                                                                                  \
		double g_ = (double)(got);                                                    \
		if (g_ < (double)(a) || g_ > (double)(b))                                     \
			failed(__FILE__, __LINE__, #got " within " #a ".." #b, (long long)g_, \
			       (long long)(a));                                               \
	} while (0)

/* WITHIN for the time between two events. The host may have had no processor meanwhile. */
#define TOOK_US(got, a, b) WITHIN(got, a, (b) + waited_us())

double waited_us(void); /* since start() */

extern const char kernels_ptx[];

CUcontext start(void); /* cuInit and a primary context, current */
CUfunction function(const char *name);
void run_us(CUfunction f, unsigned us, CUstream s); /* launches f(us) */
size_t free_bytes(void);
void sleep_ms(int ms);

/* clang-format off */
#define CASES(X) \
	X(before_init) X(memory) X(small_memory) X(managed) X(pool) X(pool_fragments) X(pool_pressure) X(vmm) X(dmabuf) X(dmabuf_closed) \
	X(exports) X(exported_pool) X(arrays) X(content) X(globals) X(context_end) X(heap_limit) X(ipc) X(event_time) \
	X(stream_order) X(default_stream) X(wait_event) X(host_function) X(write_value) \
	X(wait_value) X(counter) X(spin) X(full_stream) X(launches) X(capture) X(capture_unsafe) \
	X(graph_memory) X(child_graph) X(graph_lives) X(batch_op) X(getproc) X(library) X(child) X(groups) \
	X(slice_refused) X(rm_refuses) X(records) X(records_dropped) X(visible) X(faults) X(lost) \
	X(threads) X(per_thread) X(checkpoint) X(checkpoint_room)
/* clang-format on */
#define X(name) void case_##name(void);
CASES(X)
#undef X

#endif
