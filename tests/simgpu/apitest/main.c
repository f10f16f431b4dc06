// SPDX-License-Identifier: Apache-2.0
/* main.c - picks the case, and what the cases share. */
#define _GNU_SOURCE
#include "apitest.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* us: takes as many microseconds as its argument says */
const char kernels_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	"// simgpu: entry=us ns_per_unit=1000 unit_param=0\n"
	"// simgpu: entry=counted ns_per_unit=1000 unit_param=0 count_param=1\n"
	"// simgpu: entry=spin ns_per_unit=0 wait_param=0\n"
	".visible .global .align 8 .b8 big[33554432];\n"
	".global .u32 small;\n"
	".visible .entry us(.param .u32 us_n) { ld.param.u32 %r1, [us_n]; ret; }\n"
	".visible .entry counted(\n\t.param .u32 c_n,\n\t.param .u64 c_p\n)\n{ st.global.u32 "
	"[%rd1], 1; ret; }\n"
	".visible .entry spin(.param .u64 p)\n{ ret; }\n"
	".entry plain()\n{ ret; }\n";

void failed(const char *file, int line, const char *what, long long got, long long want)
{
	fprintf(stderr, "%s:%d: %s: got %lld, want %lld\n", file, line, what, got, want);
	fflush(stderr);
	_exit(1);
}

static double waited_before;

double waited_us(void)
{
	FILE *f = fopen("/proc/self/schedstat", "r");
	unsigned long long ns = 0;

	if (f && fscanf(f, "%*u %llu", &ns) != 1)
		ns = 0;
	if (f)
		fclose(f);
	return (double)ns / 1000 - waited_before;
}

CUcontext start(void)
{
	CUcontext ctx;

	waited_before += waited_us();
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	OK(cuCtxSetCurrent(ctx));
	return ctx;
}

CUfunction function(const char *name)
{
	static CUmodule m;
	CUfunction f;

	if (!m)
		OK(cuModuleLoadData(&m, kernels_ptx));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

void run_us(CUfunction f, unsigned us, CUstream s)
{
	void *params[] = {&us};

	OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL));
}

size_t free_bytes(void)
{
	size_t f, t;

	OK(cuMemGetInfo_v2(&f, &t));
	return f;
}

void sleep_ms(int ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000l};

	nanosleep(&ts, NULL);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
#define X(name) {#name, case_##name},
		CASES(X)
#undef X
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (argc < 2)
			puts(cases[i].name);
		else if (strcmp(argv[1], cases[i].name) == 0) {
			cases[i].run();
			return 0;
		}
	}
	if (argc >= 2)
		fprintf(stderr, "apitest: %s: no such case\n", argv[1]);
	return argc < 2 ? 0 : 2;
}
