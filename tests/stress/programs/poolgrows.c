/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poolgrows.c - a pool whose freed memory is not there yet for who asks for more.
 *
 *   poolgrows held|turns|captured|destroyed|other|brief|apart
 *
 * Six times, in a stream of its own each: takes 3 GiB of the device's pool, gives the stream work,
 * frees the memory behind that, and asks what the pool has of the card. Ends at the first error.
 * held: the work is a function that waits for the end of the program. turns: a kernel of 50 ms.
 * captured: as held, while another stream is captured. destroyed: as held, each of a pool of its own,
 * which is destroyed then. brief: as destroyed, with 1 GiB and a kernel, and the stream is waited for
 * each time. other: as turns, and each time the stream is waited for and 3 GiB of no pool are taken.
 *
 * apart: one stream has freed 2 GiB, another is to free 1 GiB behind a function that waits, and the
 * first takes 2 GiB; granted is 1 if it has done that before the other one goes on.
 *
 * Prints how many were granted, the error, the most MiB that the pool had, the result of the end of the
 * capture, and that of 3 GiB of no pool once all streams are waited for.
 */
#include <stdlib.h>
#include <unistd.h>

#include "held.h"
#include "kernels.h"

#define RELEASE_THRESHOLD 4
#define STREAMS 6
#define BYTES (3ull << 30)
#define KERNEL_NS 50000000u

static struct {
	CUresult (*stream_create)(CUstream *, unsigned), (*sync)(void);
	CUresult (*alloc)(CUdeviceptr *, size_t, CUstream), (*free)(CUdeviceptr, CUstream);
	CUresult (*pool)(CUmemoryPool *, CUdevice), (*ask)(CUmemoryPool, int, void *);
	CUresult (*host)(CUstream, void (*)(void *), void *);
	CUresult (*begin)(CUstream, int), (*end)(CUstream, CUgraph *);
	CUresult (*create)(CUmemoryPool *, const CUmemPoolProps *), (*destroy)(CUmemoryPool);
	CUresult (*alloc_from)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*keep)(CUmemoryPool, int, void *), (*query)(CUstream);
	CUresult (*take)(CUdeviceptr *, size_t), (*give)(CUdeviceptr);
} cu;

static int find(void)
{
	void *cuda = library("", "libcuda.so.1");

	cu.stream_create = needed(cuda, "cuStreamCreate");
	cu.sync = needed(cuda, "cuCtxSynchronize");
	cu.alloc = needed(cuda, "cuMemAllocAsync");
	cu.free = needed(cuda, "cuMemFreeAsync");
	cu.pool = needed(cuda, "cuDeviceGetDefaultMemPool");
	cu.ask = needed(cuda, "cuMemPoolGetAttribute");
	cu.host = needed(cuda, "cuLaunchHostFunc");
	cu.begin = needed(cuda, "cuStreamBeginCapture_v2");
	cu.end = needed(cuda, "cuStreamEndCapture");
	cu.create = needed(cuda, "cuMemPoolCreate");
	cu.destroy = needed(cuda, "cuMemPoolDestroy");
	cu.alloc_from = needed(cuda, "cuMemAllocFromPoolAsync");
	cu.keep = needed(cuda, "cuMemPoolSetAttribute");
	cu.query = needed(cuda, "cuStreamQuery");
	cu.take = needed(cuda, "cuMemAlloc_v2");
	cu.give = needed(cuda, "cuMemFree_v2");
	return cu.stream_create && cu.sync && cu.alloc && cu.free && cu.pool && cu.ask && cu.host &&
	       cu.begin && cu.end && cu.create && cu.destroy && cu.alloc_from && cu.keep &&
	       cu.query && cu.take && cu.give;
}

static CUresult work(struct kernels *k, const char *how)
{
	if (strcmp(how, "turns") == 0 || strcmp(how, "other") == 0 || strcmp(how, "brief") == 0)
		return kernels_launch(k, 1, KERNEL_NS / NS_PER_UNIT) ? CUDA_SUCCESS : 999;
	return cu.host(k->stream, hold, NULL);
}

/* From the pool, or one that ends at once. */
static CUresult round_of(struct kernels *k, const char *how, int *granted)
{
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	int brief = strcmp(how, "brief") == 0, own = brief || strcmp(how, "destroyed") == 0;
	size_t bytes = brief ? BYTES / 3 : BYTES;
	CUmemoryPool pool = NULL;
	CUdeviceptr p;
	CUresult r = own ? cu.create(&pool, &props) : CUDA_SUCCESS;

	r = r     ? r
	    : own ? cu.alloc_from(&p, bytes, pool, k->stream)
		  : cu.alloc(&p, bytes, k->stream);
	if (r == CUDA_SUCCESS) {
		*granted += 1;
		r = work(k, how) || cu.free(p, k->stream) ? 999 : CUDA_SUCCESS;
	}
	if (own && pool && cu.destroy(pool))
		return 998;
	if (r == CUDA_SUCCESS && brief)
		return k->wait_for(k->stream);
	if (r || strcmp(how, "other") != 0)
		return r;
	r = k->wait_for(k->stream);
	r = r ? r : cu.take(&p, BYTES);
	return r ? r : cu.give(p);
}

/* The first stream does not wait for the other one. */
static CUresult apart(struct kernels *k, CUstream other, int *granted)
{
	CUdeviceptr p;
	CUresult r = cu.alloc(&p, 2 * BYTES / 3, k->stream);

	r = r ? r : cu.free(p, k->stream);
	r = r ? r : k->wait_for(k->stream);
	r = r ? r : cu.alloc(&p, BYTES / 3, other);
	r = r ? r : cu.host(other, hold, NULL);
	r = r ? r : cu.free(p, other);
	r = r ? r : cu.alloc(&p, 2 * BYTES / 3, k->stream);
	for (int ms = 0; !r && !*granted && ms < 2000; ms++) {
		usleep(1000);
		*granted = cu.query(k->stream) == CUDA_SUCCESS;
	}
	return r ? r : cu.free(p, k->stream);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "held";
	CUresult r = CUDA_SUCCESS, ended = CUDA_SUCCESS, after;
	uint64_t reserved = 0, most = 0, all = ~0ull;
	CUstream captured = NULL;
	CUmemoryPool pool;
	CUgraph graph = NULL;
	struct kernels k;
	CUdeviceptr p;
	int granted = 0;

	if (kernels_open(&k, "") || !find() || cu.pool(&pool, 0) ||
	    cu.stream_create(&captured, 1) || cu.keep(pool, RELEASE_THRESHOLD, &all))
		return 2;
	if (strcmp(how, "captured") == 0 && cu.begin(captured, 0))
		return 3;
	if (strcmp(how, "apart") == 0)
		r = apart(&k, captured, &granted);
	for (int i = 0; i < STREAMS && !r && strcmp(how, "apart") != 0; i++) {
		if (cu.stream_create(&k.stream, 1))
			return 4;
		r = round_of(&k, how, &granted);
		/* What a stream frees during a capture is kept until that ends. */
		if (strcmp(how, "captured") == 0)
			continue;
		if (cu.ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
			return 6;
		most = reserved > most ? reserved : most;
	}
	if (strcmp(how, "captured") == 0)
		ended = cu.end(captured, &graph);
	let_go();
	if (cu.sync())
		return 7;
	after = cu.take(&p, BYTES);
	printf("{\"granted\":%d,\"last\":%d,\"most_mib\":%llu,\"capture\":%d,\"after\":%d}\n",
	       granted, r, (unsigned long long)most >> 20, ended, after);
	return 0;
}
