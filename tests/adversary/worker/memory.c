/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - graphs with memory nodes; memory and pools that are exported and imported. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <unistd.h>

#include "driver.h"
#include "worker.h"

#define SLOTS 4
#define MOST_PAIRS 8
#define MOST_MIB 4096
#define MEMGRAPH_US 200 /* of each of its kernels: memgraphUS in program_test.go */
#define POSIX_FILE_DESCRIPTOR 1
#define PAGE ((size_t)2 * MIB)

/* Of this thread. A descriptor is 0 while the slot has none. */
static __thread struct slot {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr mapped;
	size_t size, fd_size, mapped_size; /* of the handle, the descriptor and the mapping */
	int fd, range;
	CUmemoryPool pool;
	CUdeviceptr pooled;
} slots[SLOTS];

static struct slot *slot(unsigned i)
{
	return &slots[i % SLOTS];
}

static size_t bytes_of(unsigned mib)
{
	size_t n = (size_t)(mib % (MOST_MIB + 1)) * MIB;

	return n < PAGE ? PAGE : n / PAGE * PAGE;
}

static CUgraphNode add_kernel(CUgraph g, const CUgraphNode *after, size_t n)
{
	unsigned units = MEMGRAPH_US * 1000 / NS_PER_UNIT;
	CUDA_KERNEL_NODE_PARAMS p = {.func = kernel_of(WORK),
				     .gridDimX = 60,
				     .gridDimY = 1,
				     .gridDimZ = 1,
				     .blockDimX = 32,
				     .blockDimY = 1,
				     .blockDimZ = 1,
				     .kernelParams = (void *[]){&units}};
	CUgraphNode node = NULL;

	cu.cuGraphAddKernelNode_v2(&node, g, after, n, &p);
	return node;
}

/*
 * memgraph SLOT MIB PAIRS HOW: makes graph SLOT, of PAIRS allocations with a kernel and a free for
 * each. HOW 0: each is freed before the next one; 1: all are there at once; 2: each is a branch of
 * its own.
 */
void op_memgraph(const unsigned *a)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p = {.poolProps = {.allocType = 1, .location = {1, 0}},
					.bytesize = bytes_of(a[1])};
	unsigned pairs = a[2] % MOST_PAIRS + 1, how = a[3] % 3;
	CUgraphNode last = NULL, freed;
	CUdeviceptr at[MOST_PAIRS];
	CUgraph g;

	if (cu.cuGraphCreate(&g, 0))
		return;
	for (unsigned i = 0; i < pairs; i++) {
		if (how == 2)
			last = NULL;
		if (counted("memgraph",
			    cu.cuGraphAddMemAllocNode(&last, g, last ? (CUgraphNode[]){last} : NULL,
						      last != NULL, &p)))
			goto bad;
		at[i] = p.dptr;
		last = add_kernel(g, &(CUgraphNode){last}, 1);
		if (how != 1 && last) {
			if (cu.cuGraphAddMemFreeNode(&freed, g, &last, 1, at[i]))
				goto bad;
			last = freed;
		}
		if (!last)
			goto bad;
	}
	for (unsigned i = 0; i < pairs && how == 1; i++) {
		if (cu.cuGraphAddMemFreeNode(&freed, g, &last, 1, at[i]))
			goto bad;
		last = freed;
	}
	set_graph(a[0], g);
	return;
bad:
	cu.cuGraphDestroy(g);
}

static void release(struct slot *s)
{
	if (s->handle)
		cu.cuMemRelease(s->handle);
	s->handle = 0;
}

/* create SLOT MIB: memory that can be exported. */
void op_create(const unsigned *a)
{
	CUmemAllocationProp prop = {.type = 1,
				    .requestedHandleTypes = POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct slot *s = slot(a[0]);

	release(s);
	s->size = bytes_of(a[1]);
	if (counted("cuMemCreate", cu.cuMemCreate(&s->handle, s->size, &prop, 0)))
		s->handle = 0;
}

void op_release(const unsigned *a)
{
	release(slot(a[0]));
}

static void set_fd(int *fd, int to)
{
	if (*fd)
		close(*fd);
	*fd = to;
}

/* export SLOT: its memory has a descriptor. */
void op_export(const unsigned *a)
{
	struct slot *s = slot(a[0]);
	int fd = 0;

	if (!s->handle || !cu.cuMemExportToShareableHandle ||
	    counted("export",
		    cu.cuMemExportToShareableHandle(&fd, s->handle, POSIX_FILE_DESCRIPTOR, 0)))
		return;
	set_fd(&s->fd, fd);
	s->fd_size = s->size;
}

/* import SLOT TO: the memory of its descriptor becomes that of slot TO. */
void op_import(const unsigned *a)
{
	struct slot *s = slot(a[0]), *to = slot(a[1]);
	CUmemGenericAllocationHandle h;

	if (!s->fd || !cu.cuMemImportFromShareableHandle ||
	    counted("import", cu.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)s->fd,
								POSIX_FILE_DESCRIPTOR)))
		return;
	release(to);
	to->handle = h;
	to->size = s->fd_size;
}

static void unmap(struct slot *s)
{
	set_fd(&s->range, 0);
	if (!s->mapped)
		return;
	cu.cuMemUnmap(s->mapped, s->mapped_size);
	cu.cuMemAddressFree(s->mapped, s->mapped_size);
	s->mapped = 0;
}

/* map SLOT: its memory has an address, which keeps it when the handle is released. */
void op_map(const unsigned *a)
{
	struct slot *s = slot(a[0]);

	unmap(s);
	if (!s->handle || cu.cuMemAddressReserve(&s->mapped, s->size, 0, 0, 0)) {
		s->mapped = 0;
		return;
	}
	s->mapped_size = s->size;
	if (cu.cuMemMap(s->mapped, s->size, 0, s->handle, 0)) {
		cu.cuMemAddressFree(s->mapped, s->size);
		s->mapped = 0;
	}
}

void op_unmap(const unsigned *a)
{
	unmap(slot(a[0]));
}

/* range SLOT: a descriptor of a part of its mapping, until that is gone. */
void op_range(const unsigned *a)
{
	struct slot *s = slot(a[0]);
	int fd;

	if (s->mapped &&
	    cu.cuMemGetHandleForAddressRange(&fd, s->mapped, PAGE,
					     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) == 0)
		set_fd(&s->range, fd);
}

/* shut SLOT: closes its descriptors. */
void op_shut(const unsigned *a)
{
	set_fd(&slot(a[0])->fd, 0);
	set_fd(&slot(a[0])->range, 0);
}

union control {
	struct cmsghdr align;
	char room[CMSG_SPACE(sizeof(int))];
};

/* give SLOT: sends its descriptor, so that any process can take it. */
void op_give(const unsigned *a)
{
	struct slot *s = slot(a[0]);
	union control c = {0};
	struct iovec v = {&s->fd_size, sizeof s->fd_size};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = &c,
			   .msg_controllen = sizeof c};
	struct cmsghdr *head = CMSG_FIRSTHDR(&m);

	if (!s->fd)
		return;
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &s->fd, sizeof(int));
	sendmsg(bag[0], &m, MSG_DONTWAIT);
}

/* take SLOT: receives a descriptor that a process gave. */
void op_take(const unsigned *a)
{
	struct slot *s = slot(a[0]);
	union control c = {0};
	size_t size = 0;
	struct iovec v = {&size, sizeof size};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = &c,
			   .msg_controllen = sizeof c};
	struct cmsghdr *head;
	int fd;

	if (recvmsg(bag[1], &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return;
	head = CMSG_FIRSTHDR(&m);
	if (!head || head->cmsg_type != SCM_RIGHTS)
		return;
	memcpy(&fd, CMSG_DATA(head), sizeof fd);
	set_fd(&s->fd, fd);
	s->fd_size = size;
}

/* pool SLOT: a pool that can be exported, in the place of the last one. */
void op_pool(const unsigned *a)
{
	CUmemPoolProps props = {.allocType = 1,
				.handleTypes = POSIX_FILE_DESCRIPTOR,
				.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct slot *s = slot(a[0]);

	if (s->pooled)
		cu.cuMemFreeAsync(s->pooled, NULL);
	s->pooled = 0;
	if (s->pool)
		cu.cuMemPoolDestroy(s->pool);
	s->pool = NULL;
	if (kernel_of(WORK) && counted("cuMemPoolCreate", cu.cuMemPoolCreate(&s->pool, &props)))
		s->pool = NULL; /* without a context nothing could fill it */
}

/* fill SLOT MIB: an allocation of its pool, in the place of the last one. */
void op_fill(const unsigned *a)
{
	struct slot *s = slot(a[0]);

	if (s->pooled)
		cu.cuMemFreeAsync(s->pooled, NULL);
	s->pooled = 0;
	if (s->pool &&
	    counted("cuMemAllocFromPoolAsync",
		    cu.cuMemAllocFromPoolAsync(&s->pooled, bytes_of(a[1]), s->pool, NULL)))
		s->pooled = 0;
}

/* share SLOT: exports its pool and allocation, imports both, and gives the import back. */
void op_share(const unsigned *a)
{
	struct slot *s = slot(a[0]);
	char where[64];
	CUmemoryPool twin;
	CUdeviceptr p;
	int fd;

	if (!s->pool || !cu.cuMemPoolExportToShareableHandle ||
	    !cu.cuMemPoolImportFromShareableHandle || !cu.cuMemPoolExportPointer ||
	    !cu.cuMemPoolImportPointer ||
	    cu.cuMemPoolExportToShareableHandle(&fd, s->pool, POSIX_FILE_DESCRIPTOR, 0))
		return;
	if (counted("import of a pool",
		    cu.cuMemPoolImportFromShareableHandle(&twin, (void *)(intptr_t)fd,
							  POSIX_FILE_DESCRIPTOR, 0)) == 0) {
		if (s->pooled && cu.cuMemPoolExportPointer(where, s->pooled) == 0 &&
		    cu.cuMemPoolImportPointer(&p, twin, where) == 0)
			cu.cuMemFreeAsync(p, NULL);
		cu.cuMemPoolDestroy(twin);
	}
	close(fd);
}
