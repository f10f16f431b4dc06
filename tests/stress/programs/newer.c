/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newer.c - asks a driver of the future for versions that no libvgpu knows, by each way.
 *
 *   newer
 *
 * Prints what it was given: the version of today, and an old one, work; a newer one of what takes
 * memory is not there, or fails; one of what waits works.
 */
#include <stdlib.h>

#include "kernels.h"

static CUresult (*get)(const char *, void **, int, uint64_t, int *);

/* The function, or NULL where the driver says that it has none. */
static void *ask(const char *name, int version, int *status)
{
	void *found = NULL;

	*status = -1;
	return get(name, &found, version, 0, status) == 0 ? found : NULL;
}

int main(void)
{
	void *cuda = library("", "libcuda.so.1");
	int today, newer, waits, old, none, status;
	CUdeviceptr address;
	CUcontext ctx;
	CUresult (*init)(unsigned), (*create)(CUcontext *, unsigned, CUdevice);
	CUresult (*alloc)(CUdeviceptr *, size_t), (*wait_for_all)(void);

	init = needed(cuda, "cuInit");
	create = needed(cuda, "cuCtxCreate_v2");
	get = needed(cuda, "cuGetProcAddress_v2");
	alloc = needed(cuda, "cuMemAlloc_v99");
	if (!init || !create || !get || !alloc || init(0) || create(&ctx, 0, 0))
		return 2;
	wait_for_all = (CUresult(*)(void))ask("cuCtxSynchronize", 99000, &waits);
	today = ask("cuMemAlloc", 13000, &status) != NULL;
	old = ask("cuMemsetD8", 2000, &status) != NULL;
	ask("cuNothing", 13000, &none);
	newer = ask("cuMemAlloc", 99000, &status) != NULL;
	printf("{\"today\":%d,\"old\":%d,\"newer\":%d,\"newer_status\":%d,\"none_status\":%d,"
	       "\"by_name\":%d,\"waits\":%d}\n",
	       today, old, newer, status, none, (int)alloc(&address, 1 << 20),
	       wait_for_all && wait_for_all() == 0);
	return 0;
}
