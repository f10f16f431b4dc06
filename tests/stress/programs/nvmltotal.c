/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmltotal.c - what NVML says of the card's memory to a program that has not asked CUDA for
 * anything, and then to one that has.
 *
 *   nvmltotal [--libdir DIR] [--copy FILE]
 *
 * FILE is a copy of NVML, which the program asks in place of the NVML that it has opened.
 * One JSON line: the total in MiB before and after cuInit, and what CUDA says.
 */
#include "../../../libvgpu/driver/cuda_abi.h"
#include "common.h"

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", "");
	void *nvml = library(dir, "libnvidia-ml.so.1"), *cuda;
	nvmlMemory_t before = {0}, after = {0};
	nvmlReturn_t (*init)(void), (*of)(unsigned, nvmlDevice_t *);
	nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
	CUresult (*cu_init)(unsigned), (*cu_total)(size_t *, CUdevice);
	nvmlDevice_t card;
	size_t total = 0;

	if (nvml && *opt(argc, argv, "--copy", ""))
		nvml = library("", opt(argc, argv, "--copy", ""));
	if (!nvml)
		return 3;
	*(void **)&init = dlsym(nvml, "nvmlInit_v2");
	*(void **)&of = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&memory = dlsym(nvml, "nvmlDeviceGetMemoryInfo");
	if (!init || !of || !memory || init() || of(0, &card) || memory(card, &before))
		return 4;
	cuda = library(dir, "libcuda.so.1");
	*(void **)&cu_init = cuda ? dlsym(cuda, "cuInit") : NULL;
	*(void **)&cu_total = cuda ? dlsym(cuda, "cuDeviceTotalMem_v2") : NULL;
	if (!cu_init || !cu_total || cu_init(0) || cu_total(&total, 0) || memory(card, &after))
		return 5;
	printf("{\"nvml\":%llu,\"nvml_after\":%llu,\"cuda\":%zu}\n", before.total >> 20,
	       after.total >> 20, total >> 20);
	return 0;
}
