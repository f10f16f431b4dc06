/* SPDX-License-Identifier: Apache-2.0 */
/*
 * losses.c - a thread copies a result of its own default stream to the host again and again, while another
 * stream keeps the card busy.
 *
 *   losses [--libdir DIR]
 *
 * Prints {"copies": how many, "idle": how many of them left the card without work}.
 */
#include "kernels.h"

#define COPIES 200
#define KERNEL_US 10000u

int main(int argc, char **argv)
{
	const char *dir = opt(argc, argv, "--libdir", "");
	struct kernels k, own;
	CUresult (*alloc)(CUdeviceptr *, size_t), (*to_host)(void *, CUdeviceptr, size_t);
	CUresult (*query)(CUstream);
	int copies = 0, idle = 0, loss;
	CUdeviceptr address;
	void *cuda;

	if (kernels_open(&k, dir))
		return 2;
	cuda = library(dir, "libcuda.so.1");
	alloc = needed(cuda, "cuMemAlloc_v2");
	to_host = needed(cuda, "cuMemcpyDtoH_v2_ptds");
	query = needed(cuda, "cuStreamQuery");
	own = k;
	own.launch = needed(cuda, "cuLaunchKernel_ptsz");
	own.stream = NULL;
	if (!alloc || !to_host || !query || !own.launch || alloc(&address, 4096))
		return 3;
	for (; copies < COPIES; copies++) {
		/* The card runs them one after another. */
		if (!kernels_launch(&own, 2, 10) ||
		    !kernels_launch(&k, 1, KERNEL_US * 1000 / NS_PER_UNIT) ||
		    to_host(&loss, address, sizeof loss))
			return 4;
		idle += query(k.stream) == CUDA_SUCCESS;
	}
	printf("{\"copies\":%d,\"idle\":%d}\n", copies, idle);
	return 0;
}
