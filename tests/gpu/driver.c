// SPDX-License-Identifier: Apache-2.0
/* driver.c - finds the libraries as programs do: by name, through dlsym, or
 * through cuGetProcAddress. */
#define _GNU_SOURCE
#include "worker.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver_calls cu;
struct nvml_calls nvml;

void die(const char *what, const char *why)
{
	fflush(stdout);
	fprintf(stderr, "vgpu-worker: %s: %s\n", what, why);
	exit(1);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static uint64_t (*simulated_late_ns)(void);

double late_s(void)
{
	return simulated_late_ns ? (double)simulated_late_ns() / 1e9 : 0;
}

const char *error_name(CUresult rc)
{
	const char *name = NULL;

	if (cu.GetErrorName)
		cu.GetErrorName(rc, &name);
	return name ? name : "unknown error";
}

void must(CUresult rc, const char *what)
{
	if (rc)
		die(what, error_name(rc));
}

static void *open_library(const char *libdir, const char *name)
{
	char path[PATH_MAX];

	if (!libdir)
		return dlopen(name, RTLD_NOW | RTLD_GLOBAL);
	snprintf(path, sizeof(path), "%s/%s", libdir, name);
	return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

static void by_dlsym(void *lib)
{
	void *p;
#define X(field, symbol, version) \
	p = dlsym(lib, #symbol);  \
	memcpy(&cu.field, &p, sizeof(cu.field));
	DRIVER_CALLS(X)
#undef X
}

/* The base name is asked for: cuMemAlloc, version 3020, is cuMemAlloc_v2. */
static void by_getproc_address(void *lib)
{
	CUresult (*get)(const char *, void **, int, uint64_t, int *);
	void *p = dlsym(lib, "cuGetProcAddress_v2");

	if (!p)
		die("cuGetProcAddress_v2", "not found");
	memcpy(&get, &p, sizeof(get));
#define X(field, symbol, version)                              \
	{                                                      \
		int status = 0;                                \
		p = NULL;                                      \
		if (get("cu" #field, &p, version, 0, &status)) \
			p = NULL;                              \
		memcpy(&cu.field, &p, sizeof(cu.field));       \
	}
	DRIVER_CALLS(X)
#undef X
}

void driver_load(const char *libdir, bool by_getproc)
{
	void *lib = open_library(libdir, "libcuda.so.1");

	if (!lib)
		die("libcuda.so.1", dlerror());
	*(void **)&simulated_late_ns = dlsym(lib, "simgpu_late_ns");
	if (by_getproc)
		by_getproc_address(lib);
	else
		by_dlsym(lib);
	if (!cu.Init || !cu.DeviceGet || !cu.MemAlloc || !cu.LaunchKernel || !cu.EventRecord)
		die("libcuda.so.1", "a call of every driver since CUDA 4 is missing");
	must(cu.Init(0), "cuInit");
}

/* NVML is for the report only; without it the report leaves its numbers out. */
void nvml_load(const char *libdir)
{
	void *lib = open_library(libdir, "libnvidia-ml.so.1");
	void *p;

	if (!lib)
		return;
#define X(field, symbol)         \
	p = dlsym(lib, #symbol); \
	memcpy(&nvml.field, &p, sizeof(nvml.field));
	NVML_CALLS(X)
#undef X
	nvml.ready = nvml.Init && nvml.DeviceGetHandleByUUID && nvml.DeviceGetMemoryInfo &&
		     nvml.Init() == NVML_SUCCESS;
}
