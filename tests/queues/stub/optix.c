/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optix.c - libnvoptix.so.1 for tests: its functions launch kernels on the simulated card by a function of the
 * driver that has no name. A function's third argument is how many units of work it is, the first a
 * CUfunction that does them.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "../../../libvgpu/driver/optix_abi.h"

#define VERSION_ERROR 7801
#define CUDA_FAILED 7900

typedef CUresult launch_function(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
				 unsigned, unsigned, CUstream, void **, void **);

static OptixResult work(CUfunction f, CUstream stream, optix_word amount)
{
	static launch_function *const *table;
	unsigned units = (unsigned)amount;
	void *params[] = {&units};

	if (!table) {
		void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		CUresult (*find)(const void **, const void *) =
			cuda ? dlsym(cuda, "cuGetExportTable") : NULL;

		if (!find || find((const void **)&table, "simgpu's launch"))
			return CUDA_FAILED;
	}
	return (*table)(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) ? CUDA_FAILED : 0;
}

static OptixResult launch(CUfunction f, CUstream stream, optix_word units, optix_word d,
			  optix_word e, unsigned width, unsigned height, unsigned depth)
{
	(void)d, (void)e;
	return width == 10 && height == 20 && depth == 1 ? work(f, stream, units) : CUDA_FAILED;
}

/* Half of it by CUDA's own name, as a library of NVIDIA's may. */
static OptixResult build(CUfunction f, CUstream stream, optix_word units, optix_word d, unsigned e,
			 optix_word g, optix_word h, optix_word i, optix_word j, optix_word *handle,
			 optix_word k, unsigned last)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	launch_function *by_name = dlsym(cuda, "cuLaunchKernel");
	unsigned half = (unsigned)units / 2;
	void *params[] = {&half};

	(void)d, (void)e, (void)g, (void)h, (void)i, (void)j, (void)k;
	*handle = last;
	return by_name(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) ? CUDA_FAILED
								     : work(f, stream, half);
}

__attribute__((visibility("default"))) OptixResult
optixQueryFunctionTable(int version, unsigned options, const int *keys, const void **values,
			void *table, size_t size);
OptixResult optixQueryFunctionTable(int version, unsigned options, const int *keys,
				    const void **values, void *table, size_t size)
{
	static const struct optix_table known[] = {OPTIX_TABLES};
	void **entry = table;

	(void)options, (void)keys, (void)values;
	if (!version)
		return VERSION_ERROR;
	memset(table, 0, size);
	/* Of a version of its own, too. */
	entry[0] = (void *)launch;
	for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
		if (known[i].version != version)
			continue;
		entry[0] = NULL;
		entry[known[i].at[OPTIX_Launch]] = (void *)launch;
		entry[known[i].at[OPTIX_AccelBuild]] = (void *)build;
	}
	return 0;
}
