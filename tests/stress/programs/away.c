/* SPDX-License-Identifier: Apache-2.0 */
/*
 * away.c - memory that only a descriptor outside of this process's table keeps.
 *
 *   away away|range|forked|facts [--libdir DIR] [--rounds N]
 *
 *   away    Each round creates, exports and releases 3 GiB. It sends the descriptor into a socket and
 *           closes it here. The descriptor stays in the socket.
 *   range   As away, with a dma-buf of freed memory.
 *   forked  This process closes the descriptor of 3 GiB. A forked child keeps it.
 *   facts   Prints whether an epoll set lists an export and a dma-buf: open, in a socket alone, closed.
 *
 * Prints a line of JSON: the number of rounds that succeeded, and the error of the next round. It also
 * has the MiB that cuMemGetInfo counts at that time, and after the last descriptor is closed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "fds.h"

#define SIZE ((size_t)3 << 30)

static size_t idle;
static CUmemAllocationProp prop = {.type = 1,
				   .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void send_away(int socket, int fd)
{
	if (send_fd(socket, fd))
		exit(3);
	close(fd);
}

static CUresult export(int *fd)
{
	CUmemGenericAllocationHandle h;
	CUresult r = TRY(cuMemCreate, &h, SIZE, &prop, 0ull);

	if (r == CUDA_SUCCESS) {
		CALL(cuMemExportToShareableHandle, fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		     0ull);
		CALL(cuMemRelease, h);
	}
	return r;
}

static CUresult export_range(int *fd)
{
	CUdeviceptr p;
	CUresult r = TRY(cuMemAlloc_v2, &p, SIZE), not_exported;

	if (r)
		return r;
	not_exported = TRY(cuMemGetHandleForAddressRange, fd, p, (size_t)64 << 10,
			   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ull);
	CALL(cuMemFree_v2, p);
	return not_exported;
}

static int away(int rounds, CUresult (*export_one)(int *))
{
	int pair[2], fd, n = 0;
	CUresult r = CUDA_SUCCESS;
	size_t most;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 3;
	for (; n < rounds && !r; n += !r) {
		r = export_one(&fd);
		if (r == CUDA_SUCCESS)
			send_away(pair[0], fd);
	}
	most = used() - idle;
	close(pair[0]);
	close(pair[1]);
	printf("{\"granted\":%d,\"error\":%d,\"used\":%zu,\"after\":%zu}\n", n, r, most,
	       used() - idle);
	return 0;
}

static int forked(void)
{
	int to_child[2], fd;
	size_t with;
	pid_t child;
	char end;

	if (export(&fd) || pipe(to_child))
		return 3;
	child = fork();
	if (child == 0) {
		close(to_child[1]);
		(void)!read(to_child[0], &end, 1); /* until the parent closes its end */
		_exit(0);
	}
	close(fd);
	with = used() - idle;
	close(to_child[1]);
	waitpid(child, NULL, 0);
	printf("{\"used\":%zu,\"after\":%zu}\n", with, used() - idle);
	return 0;
}

static void show(const char *name, int fd)
{
	struct epoll_event e = {.events = EPOLLET, .data.u64 = 1};
	int set = epoll_create1(EPOLL_CLOEXEC), pair[2], error, open, alone;

	error = epoll_ctl(set, EPOLL_CTL_ADD, fd, &e) ? errno : 0;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(3);
	open = epoll_entries(set);
	send_away(pair[0], fd);
	alone = epoll_entries(set);
	printf("%s in an epoll set: error %d; entries: %d open, %d in a socket alone (used %zu)",
	       name, error, open, alone, used() - idle);
	close(pair[0]);
	close(pair[1]);
	printf(", %d closed (used %zu)\n", epoll_entries(set), used() - idle);
	close(set);
}

static int facts(void)
{
	int fd;

	if (export(&fd))
		return 3;
	show("an export", fd);
	if (export_range(&fd) == CUDA_SUCCESS)
		show("a dma-buf", fd);
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	open_card(opt(argc, argv, "--libdir", ""));
	idle = used();
	if (strcmp(how, "facts") == 0)
		return facts();
	if (strcmp(how, "forked") == 0)
		return forked();
	return away(atoi(opt(argc, argv, "--rounds", "10")),
		    strcmp(how, "range") == 0 ? export_range : export);
}
