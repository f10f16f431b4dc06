/* SPDX-License-Identifier: Apache-2.0 */
/* size_test.c - limits from environment variables, parsed strictly. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "../../libvgpu/config.h"
#include "../../libvgpu/job/env.h"
#include "check.h"

static uint64_t size(const char *text)
{
	uint64_t bytes = 0;

	return vgpu_parse_size(text, &bytes) ? bytes : UINT64_MAX;
}

static void test_sizes(void)
{
	CHECK_EQ(size("4096"), 4096);
	CHECK_EQ(size("1k"), 1024);
	CHECK_EQ(size("512M"), 512ll << 20);
	CHECK_EQ(size("8g"), 8ll << 30);
	CHECK_EQ(size("2T"), 2ll << 40);
	static const char *const bad[] = {"",
					  "0",
					  "1.5g",
					  "010m",
					  "-1",
					  "+1",
					  "1gb",
					  "g",
					  " 1g",
					  "1g ",
					  "0x10",
					  "1e9",
					  "18446744073709551616",
					  "18014398509481984k"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(size(bad[i]) == UINT64_MAX);
}

static void test_no_variables_no_grant(void)
{
	struct vgpu_grant g;

	clearenv();
	CHECK(!vgpu_grant_from_env(&g));
}

static void test_variables(void)
{
	struct vgpu_grant g;

	clearenv();
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "8g", 1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT_1", "512m", 1);
	setenv("CUDA_DEVICE_SM_LIMIT", "30", 1);
	CHECK(vgpu_grant_from_env(&g));
	CHECK_EQ(g.card[0].mem_limit, 8ll << 30);
	CHECK_EQ(g.card[1].mem_limit, 512ll << 20);
	CHECK_EQ(g.card[0].cores, 30);
	CHECK_EQ(g.card[0].mode, VGPU_MODE_HARD);
	setenv("GPU_CORE_UTILIZATION_POLICY", "disable", 1);
	CHECK(vgpu_grant_from_env(&g));
	CHECK_EQ(g.card[0].mode, VGPU_MODE_OFF);
}

/* What cannot be read closes the limit; it never opens it. */
static void test_bad_variables_do_not_open(void)
{
	struct vgpu_grant g;

	clearenv();
	if (!freopen("/dev/null", "w", stderr))
		exit(1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", "1.5g", 1);
	setenv("CUDA_DEVICE_SM_LIMIT", "150", 1);
	CHECK(vgpu_grant_from_env(&g));
	CHECK_EQ(g.card[0].mem_limit, 1);
	CHECK_EQ(g.card[0].cores, 1);
}

int main(void)
{
	test_sizes();
	test_no_variables_no_grant();
	test_variables();
	test_bad_variables_do_not_open();
	return done("size");
}
