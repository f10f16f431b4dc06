/* SPDX-License-Identifier: Apache-2.0 */
/*
 * freeasync.c - memory of cuMemAlloc, or managed, is freed in a stream.
 *
 *   freeasync linear|managed synced|held
 *
 * Four times: takes 3 GiB and frees them in a stream. synced: waits for the stream. held: before
 * the free the stream has a function that waits for the end of the program. Ends at the first error;
 * prints how many were granted, that error, and the MiB in use once the stream has come to all frees.
 */
#include "held.h"
#include "kernels.h"

#define ROUNDS 4
#define BYTES (3ull << 30)
#define ATTACH_GLOBAL 1u

static struct {
	CUresult (*alloc)(CUdeviceptr *, size_t), (*managed)(CUdeviceptr *, size_t, unsigned);
	CUresult (*free)(CUdeviceptr, CUstream), (*told)(size_t *, size_t *);
	CUresult (*host)(CUstream, void (*)(void *), void *);
} cu;

static int find(void)
{
	void *cuda = library("", "libcuda.so.1");

	cu.alloc = needed(cuda, "cuMemAlloc_v2");
	cu.managed = needed(cuda, "cuMemAllocManaged");
	cu.free = needed(cuda, "cuMemFreeAsync");
	cu.told = needed(cuda, "cuMemGetInfo_v2");
	cu.host = needed(cuda, "cuLaunchHostFunc");
	return cu.alloc && cu.managed && cu.free && cu.told && cu.host;
}

int main(int argc, char **argv)
{
	int managed = argc > 1 && strcmp(argv[1], "managed") == 0, granted = 0;
	int held = argc > 2 && strcmp(argv[2], "held") == 0;
	size_t before, after, total;
	CUresult r = CUDA_SUCCESS;
	struct kernels k;
	CUdeviceptr p;

	if (kernels_open(&k, "") || !find() || cu.told(&before, &total))
		return 2;
	for (int i = 0; i < ROUNDS && !r; i++) {
		r = managed ? cu.managed(&p, BYTES, ATTACH_GLOBAL) : cu.alloc(&p, BYTES);
		if (r)
			break;
		granted++;
		if ((held && cu.host(k.stream, hold, NULL)) || cu.free(p, k.stream) ||
		    (!held && k.wait_for(k.stream)))
			return 3;
	}
	let_go();
	if (k.wait_for(k.stream) || cu.told(&after, &total))
		return 4;
	printf("{\"granted\":%d,\"last\":%d,\"left_mib\":%lld}\n", granted, r,
	       ((long long)before - (long long)after) / (1 << 20));
	return 0;
}
