/* SPDX-License-Identifier: Apache-2.0 */
/*
 * absurd.c - sizes that no card has, with which sums of bytes wrap.
 *
 *   absurd managed|linear
 *
 * managed: a thread asks for almost 2^64 bytes of managed memory, and another one for 64 MiB while the
 * driver thinks about that. linear: takes 1 GiB and then asks for 2^64 - 1 bytes. Prints the error of
 * the size that no card has, and the MiB in use that cuMemGetInfo tells; then waits for the end of its
 * standard input.
 */
#include <pthread.h>

#include "kernels.h"

#define ATTACH_GLOBAL 1u

static CUresult (*managed)(CUdeviceptr *, size_t, unsigned);
static CUresult (*set_current)(CUcontext);
static CUcontext ctx;
static volatile CUresult refused;

static void *asking(void *unused)
{
	CUdeviceptr p;

	(void)unused;
	refused = set_current(ctx);
	if (!refused)
		refused = managed(&p, -(100ull << 20), ATTACH_GLOBAL);
	return NULL;
}

int main(int argc, char **argv)
{
	void *cuda = library("", "libcuda.so.1");
	CUresult (*alloc)(CUdeviceptr *, size_t) = needed(cuda, "cuMemAlloc_v2");
	CUresult (*told)(size_t *, size_t *) = needed(cuda, "cuMemGetInfo_v2");
	CUresult (*get_current)(CUcontext *) = needed(cuda, "cuCtxGetCurrent");
	size_t before, after, total;
	struct kernels k;
	CUdeviceptr p;
	pthread_t t;
	char c;

	managed = needed(cuda, "cuMemAllocManaged");
	set_current = needed(cuda, "cuCtxSetCurrent");
	if (!alloc || !told || !get_current || !managed || !set_current || kernels_open(&k, "") ||
	    get_current(&ctx) || told(&before, &total))
		return 2;
	if (argc > 1 && strcmp(argv[1], "managed") == 0) {
		if (pthread_create(&t, NULL, asking, NULL))
			return 3;
		usleep(100000);
		if (managed(&p, 64 << 20, ATTACH_GLOBAL))
			return 4;
		pthread_join(t, NULL);
	} else {
		if (alloc(&p, 1 << 30))
			return 4;
		refused = alloc(&p, (size_t)-1);
	}
	if (told(&after, &total))
		return 5;
	printf("{\"error\":%d,\"used_mib\":%lld}\n", refused,
	       ((long long)before - (long long)after) / (1 << 20));
	fflush(stdout);
	return read(0, &c, 1) != 0;
}
