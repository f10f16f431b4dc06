/* SPDX-License-Identifier: Apache-2.0 */
/*
 * external.c - rounds of 3 GiB: memory is exported as a descriptor, imported by cuImportExternalMemory
 * and released. The import, or a buffer that is mapped from it, keeps the memory.
 *
 *   external import|buffer [--libdir DIR]
 *
 * Prints a line of JSON: how many of 10 rounds succeeded, the error of the next, and the MiB in use.
 */
#include <stdint.h>

#include "calls.h"

#define SIZE ((size_t)3 << 30)

/* The driver's CUDA_EXTERNAL_MEMORY_BUFFER_DESC. */
struct buffer {
	unsigned long long offset, size;
	unsigned flags, reserved[16];
};

static CUresult one_round(int buffer)
{
	CUmemAllocationProp prop = {.type = 1,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
						 .size = SIZE};
	struct buffer part = {.size = SIZE};
	CUmemGenericAllocationHandle h;
	CUexternalMemory memory;
	CUdeviceptr p;
	CUresult r = TRY(cuMemCreate, &h, SIZE, &prop, 0ull);

	if (r)
		return r;
	CALL(cuMemExportToShareableHandle, &desc.handle.fd, h,
	     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
	CALL(cuImportExternalMemory, &memory, &desc); /* the descriptor is the driver's now */
	CALL(cuMemRelease, h);
	if (buffer) {
		CALL(cuExternalMemoryGetMappedBuffer, &p, memory, &part);
		CALL(cuDestroyExternalMemory, memory);
	}
	return CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
	int buffer = argc > 1 && strcmp(argv[1], "buffer") == 0, n = 0;
	CUresult r = CUDA_SUCCESS;
	size_t idle;

	open_card(opt(argc, argv, "--libdir", ""));
	idle = used();
	for (; n < 10 && !r; n += !r)
		r = one_round(buffer);
	printf("{\"granted\":%d,\"error\":%d,\"used\":%zu}\n", n, r, used() - idle);
	return 0;
}
