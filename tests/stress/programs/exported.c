/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exported.c - memory of which a part is exported as a dma-buf, and freed before that is closed.
 *
 *   exported linear|small|pool|mapped [--libdir DIR]
 *
 * Prints a line: the MiB that are told to be in use when 1 GiB is taken (small: 64 KiB), when it is
 * freed, and when both descriptors of it are closed.
 */
#include <stdint.h>
#include <unistd.h>

#include "calls.h"

#define MIB ((size_t)1 << 20)

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;
	const size_t bytes = strcmp(what, "small") == 0 ? 64 << 10 : 1024 * MIB;
	const int linear = strcmp(what, "linear") == 0 || bytes < MIB;
	size_t before, taken, freed;
	CUdeviceptr p;
	int fd[2];

	open_card(opt(argc, argv, "--libdir", ""));
	before = used();
	if (linear) {
		CALL(cuMemAlloc_v2, &p, bytes);
	} else if (strcmp(what, "pool") == 0) {
		CALL(cuMemAllocAsync, &p, bytes, (CUstream)NULL);
	} else {
		CALL(cuMemCreate, &handle, bytes, &prop, 0ull);
		CALL(cuMemAddressReserve, &p, bytes, (size_t)0, (CUdeviceptr)0, 0ull);
		CALL(cuMemMap, p, bytes, (size_t)0, handle, 0ull);
	}
	taken = used();
	for (int i = 0; i < 2; i++)
		CALL(cuMemGetHandleForAddressRange, &fd[i], p + bytes / 2, (size_t)4096,
		     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ull);
	if (linear) {
		CALL(cuMemFree_v2, p);
	} else if (strcmp(what, "pool") == 0) {
		CALL(cuMemFreeAsync, p, (CUstream)NULL);
		CALL(cuStreamSynchronize, (CUstream)NULL);
	} else {
		CALL(cuMemRelease, handle);
		CALL(cuMemUnmap, p, bytes);
	}
	close(fd[0]);
	freed = used();
	close(fd[1]);
	printf("{\"taken\":%zu,\"freed\":%zu,\"closed\":%zu}\n", taken - before, freed - before,
	       used() - before);
	return 0;
}
