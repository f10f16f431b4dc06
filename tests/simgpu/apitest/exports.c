// SPDX-License-Identifier: Apache-2.0
/* exports.c - memory that is exported and imported. */
#define _GNU_SOURCE
#include "apitest.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (64 * MIB)
#define FD 1
#define FABRIC 8

static const CUmemAllocationProp prop = {.type = 1,
					 .requestedHandleTypes = FD | FABRIC,
					 .location = {1, 0}};

static CUmemGenericAllocationHandle import_fd(int fd)
{
	CUmemGenericAllocationHandle h;

	OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, FD));
	close(fd);
	return h;
}

/* One of two processes: sends a descriptor, or receives one, which is -1 before. */
static int passed(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(fd))] = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	if (fd < 0) {
		EQ(recvmsg(socket, &m, 0), 1);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		return fd;
	}
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	EQ(sendmsg(socket, &m, 0), 1);
	close(fd);
	return fd;
}

/* An import is a reference to the same memory, in the same process and in another one, and so is a
 * descriptor. The memory lives until the last of these goes. */
void case_exports(void)
{
	CUmemGenericAllocationHandle h, i, j;
	unsigned char data[64], again[64];
	int fd, second, pair[2];
	size_t before;
	CUdeviceptr va;
	pid_t child;

	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	child = fork();
	start();
	if (child == 0) {
		OK(cuMemCreate(&h, SIZE, &prop, 0));
		OK(cuMemExportToShareableHandle(&fd, h, FD, 0));
		passed(pair[1], fd);
		_exit(0);
	}
	fd = passed(pair[0], -1);
	EQ(waitpid(child, NULL, 0), child);
	sleep_ms(30); /* the model looks for ended processes every 20 ms */
	before = free_bytes();
	i = import_fd(fd); /* its process has ended */
	EQ(before, free_bytes());
	OK(cuMemRelease(i));
	before += SIZE;
	EQ(free_bytes(), before);

	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, h, FD, 0));
	OK(cuMemExportToShareableHandle(&second, h, FD, 0));
	i = import_fd(dup(fd));
	TRUE(i != h);
	EQ(before - free_bytes(), SIZE);
	OK(cuMemRelease(h));
	close(second);
	close(fd);
	EQ(before - free_bytes(), SIZE); /* the import, which nothing maps */
	OK(cuMemAddressReserve(&va, SIZE, 0, 0, 0));
	OK(cuMemMap(va, SIZE, 0, i, 0));
	OK(cuMemRelease(i));
	EQ(before - free_bytes(), SIZE);
	OK(cuMemUnmap(va, SIZE));
	EQ(free_bytes(), before);

	OK(cuMemCreate(&h, SIZE, &prop, 0));
	OK(cuMemExportToShareableHandle(data, h, FABRIC, 0));
	OK(cuMemExportToShareableHandle(again, h, FABRIC, 0));
	EQ(memcmp(data, again, sizeof(data)), 0);
	OK(cuMemImportFromShareableHandle(&j, data, FABRIC));
	OK(cuMemRelease(h));
	EQ(before - free_bytes(), SIZE);
	OK(cuMemRelease(j));
	EQ(free_bytes(), before);
	EQ(cuMemImportFromShareableHandle(&j, data, FABRIC), CUDA_ERROR_INVALID_VALUE);
}

/* An imported pool keeps the memory of the pool and of its pointers. It gives no memory itself. */
void case_exported_pool(void)
{
	CUmemPoolProps props = {.allocType = 1, .handleTypes = FD, .location = {1, 0}};
	CUmemoryPool pool, imported;
	unsigned char data[64];
	CUdeviceptr p, q, none;
	size_t before;
	int fd;

	OK(cuInit(0));
	OK(cuMemPoolCreate(&pool, &props));
	EQ(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuMemPoolDestroy(pool));
	start();
	before = free_bytes();
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, SIZE, pool, NULL));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
	OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, FD, 0));
	close(fd);
	EQ(cuMemAllocFromPoolAsync(&none, SIZE, imported, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolExportPointer(data, p));
	OK(cuMemPoolImportPointer(&q, imported, data));
	TRUE(q != p);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemPoolDestroy(pool));
	EQ(before - free_bytes(), SIZE);
	OK(cuMemFreeAsync(q, NULL));
	EQ(before - free_bytes(), SIZE);
	OK(cuMemPoolDestroy(imported));
	EQ(free_bytes(), before);
}

static void tell(int socket)
{
	EQ(write(socket, "", 1), 1);
}

static void hear(int socket)
{
	char byte;

	EQ(read(socket, &byte, 1), 1);
}

static CUdeviceptr mapped(size_t size)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;

	OK(cuMemCreate(&h, size, &prop, 0));
	OK(cuMemAddressReserve(&va, size, 0, 0, 0));
	OK(cuMemMap(va, size, 0, h, 0));
	OK(cuMemRelease(h));
	return va;
}

/* The last close of a descriptor frees the memory at once: its process makes no further call. */
void case_dmabuf_closed(void)
{
	int pair[2], fd[3], status;
	CUdeviceptr a, va;
	size_t before;
	pid_t child;

	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	child = fork();
	start();
	if (child == 0) {
		hear(pair[1]);
		before = free_bytes();
		tell(pair[1]);
		hear(pair[1]);
		EQ(before - free_bytes(), 128 * MIB);
		tell(pair[1]);
		hear(pair[1]);
		EQ(free_bytes(), before);
		_exit(0);
	}
	tell(pair[0]);
	hear(pair[0]);
	OK(cuMemAlloc_v2(&a, 64 * MIB));
	va = mapped(64 * MIB);
	OK(cuMemGetHandleForAddressRange(&fd[0], a, MIB, 1, 0));
	OK(cuMemGetHandleForAddressRange(&fd[1], a + MIB, MIB, 1, 0));
	OK(cuMemGetHandleForAddressRange(&fd[2], va, MIB, 1, 0));
	OK(cuMemFree_v2(a));
	OK(cuMemUnmap(va, 64 * MIB));
	close(fd[0]);
	tell(pair[0]);
	hear(pair[0]);
	close(fd[1]);
	close(fd[2]);
	tell(pair[0]);
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
}
