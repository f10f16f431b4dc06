/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imports.c - memory that is exported, imported and kept by descriptors, on a real or a simulated card.
 *
 *   imports CASE [--libdir DIR] [--gib N] [--rounds N]
 *
 *   own      rounds of N GiB: memory is created, exported, imported and released; its import is mapped.
 *   dup      The same, but the descriptor is duplicated and closed before the import.
 *   late     The same, but the allocation is released before the import.
 *   fabric   The same with a FABRIC handle.
 *   pool     The same with memory of a pool, which is destroyed.
 *   children Rounds: another process exports and ends before this process imports and maps, twice if refused.
 *   together Memory of a living process is imported: the MiB in use before, meanwhile, and after.
 *   ipc      Memory of another process is opened by cuIpcOpenMemHandle. That process ends, and N GiB
 *            are allocated, again and again.
 *   many     4097 exports of one allocation: the cost of a call, and the MiB in use at the end.
 *   reused   An export is closed, and its number is given to another file of the same inode.
 *   renamed  The number of a closed export becomes that of an export of 2 MiB, which is imported by it: the
 *            MiB in use then, with the import alone, and after it.
 *   swapped  A number is that of an export, then of a smaller one, then of the first one, which is imported
 *            by it. The MiB in use after all descriptors are closed.
 *   facts    How the driver behaves.
 *
 * Prints a line of JSON: how many rounds succeeded and the error of the next, the MiB that
 * cuMemGetInfo counts then, and those that NVML counts for this process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "calls.h"
#include "fds.h"

#define MIB ((size_t)1 << 20)
#define FD 1
#define FABRIC 8
#define EXPORTS 4097
#define MOST_ROUNDS 16

static void *nvml;
static const char *libdir;
static size_t size, idle;
static CUresult again; /* of a mapping that was refused */
static CUmemAllocationProp prop = {.type = 1,
				   .requestedHandleTypes = FD,
				   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

/* What NVML counts for this process, in MiB; -1: it does not say. */
static long counted(void)
{
	struct {
		unsigned pid, pad;
		unsigned long long bytes;
		unsigned gi, ci;
	} p[64];
	static void *device;
	unsigned n = 64;
	int (*init)(void), (*by_index)(unsigned, void **), (*list)(void *, unsigned *, void *);

	if (!nvml)
		nvml = library(libdir, "libnvidia-ml.so.1");
	if (!nvml)
		return -1;
	init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
	by_index = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	list = (int (*)(void *, unsigned *,
			void *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!device && (init() || by_index(0, &device)))
		return -1;
	if (list(device, &n, p))
		return -1;
	for (unsigned i = 0; i < n; i++)
		if (p[i].pid == (unsigned)getpid())
			return (long)(p[i].bytes / MIB);
	return -1;
}

static void begin(void)
{
	open_card(libdir);
	idle = used();
}

static CUresult mapped(CUmemGenericAllocationHandle h, CUdeviceptr *at)
{
	CUresult r = TRY(cuMemAddressReserve, at, size, (size_t)0, (CUdeviceptr)0, 0ull);

	return r ? r : TRY(cuMemMap, *at, size, (size_t)0, h, 0ull);
}

static CUresult own_round(const char *how)
{
	const bool fabric = strcmp(how, "fabric") == 0;
	CUmemGenericAllocationHandle h, i;
	unsigned char data[64];
	CUdeviceptr at;
	CUresult r;
	int fd = -1;

	prop.requestedHandleTypes = fabric ? FABRIC : FD;
	r = TRY(cuMemCreate, &h, size, &prop, 0ull);
	if (r)
		return r;
	CALL(cuMemExportToShareableHandle, fabric ? (void *)data : &fd, h, fabric ? FABRIC : FD,
	     0ull);
	if (strcmp(how, "dup") == 0) {
		int other = dup(fd);

		close(fd);
		fd = other;
	}
	if (strcmp(how, "late") == 0)
		CALL(cuMemRelease, h);
	r = TRY(cuMemImportFromShareableHandle, &i, fabric ? (void *)data : (void *)(intptr_t)fd,
		fabric ? FABRIC : FD);
	if (fd >= 0)
		close(fd);
	if (strcmp(how, "late") != 0)
		CALL(cuMemRelease, h);
	if (r)
		return r;
	r = mapped(i, &at);
	CALL(cuMemRelease, i);
	return r;
}

/* The rest of the pool's interface is not in cuda_abi.h. */
static CUresult pool_round(void)
{
	CUmemPoolProps props = {.allocType = 1, .handleTypes = FD, .location = prop.location};
	CUmemoryPool pool, imported;
	unsigned char data[64];
	CUdeviceptr p, q;
	CUresult r;
	int fd;

	CALL(cuMemPoolCreate, &pool, &props);
	r = TRY(cuMemAllocFromPoolAsync, &p, size, pool, (CUstream)NULL);
	if (r)
		return r;
	CALL(cuMemPoolExportToShareableHandle, &fd, pool, FD, 0ull);
	CALL(cuMemPoolImportFromShareableHandle, &imported, (void *)(intptr_t)fd, FD, 0ull);
	close(fd);
	CALL(cuMemPoolExportPointer, data, p);
	r = TRY(cuMemPoolImportPointer, &q, imported, data);
	CALL(cuMemFreeAsync, p, (CUstream)NULL);
	CALL(cuStreamSynchronize, (CUstream)NULL);
	CALL(cuMemPoolDestroy, pool);
	if (r == CUDA_SUCCESS) /* the imported pool still keeps its memory */
		CALL(cuMemFreeAsync, q, (CUstream)NULL);
	return r;
}

/* In another process: exports, and ends. */
static void exporter(int socket)
{
	CUmemGenericAllocationHandle h;
	CUresult r;
	char go;
	int fd;

	if (read(socket, &go, 1) != 1)
		_exit(0);
	begin();
	r = TRY(cuMemCreate, &h, size, &prop, 0ull);
	if (r)
		_exit(4);
	CALL(cuMemExportToShareableHandle, &fd, h, FD, 0ull);
	send_fd(socket, fd);
	(void)!read(socket, &go, 1); /* until it is to end */
	_exit(0);
}

typedef struct {
	char bytes[64];
} ipc_handle;

static void ipc_exporter(int socket)
{
	ipc_handle handle;
	CUdeviceptr p;
	char go;

	begin();
	CALL(cuMemAlloc_v2, &p, size);
	CALL(cuIpcGetMemHandle, &handle, p);
	(void)!write(socket, &handle, sizeof handle);
	(void)!read(socket, &go, 1);
	_exit(0);
}

static int ipc(void)
{
	CUresult (*open_handle)(CUdeviceptr *, ipc_handle, unsigned);
	size_t before, with;
	ipc_handle handle;
	CUdeviceptr p;
	int pair[2], n = 0;
	pid_t other;
	CUresult r;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 3;
	other = fork();
	if (other == 0)
		ipc_exporter(pair[1]);
	begin();
	if (read(pair[0], &handle, sizeof handle) != sizeof handle)
		return 3;
	open_handle = (CUresult(*)(CUdeviceptr *, ipc_handle,
				   unsigned))dlsym(cuda, "cuIpcOpenMemHandle_v2");
	before = used();
	r = open_handle(&p, handle, 1);
	with = used();
	send(pair[0], "e", 1, MSG_NOSIGNAL);
	waitpid(other, NULL, 0);
	for (; !r && n < 10; n += !r) {
		CUdeviceptr more;

		r = TRY(cuMemAlloc_v2, &more, size);
	}
	printf("{\"granted\":%d,\"error\":%d,\"before\":%zu,\"with\":%zu,\"nvml\":%ld}\n", n, r,
	       before, with, counted());
	return 0;
}

static int sockets[MOST_ROUNDS];
static pid_t child[MOST_ROUNDS];

static void fork_exporters(int n)
{
	int pair[2];

	for (int i = 0; i < n; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			exit(3);
		child[i] = fork();
		if (child[i] == 0) {
			close(pair[0]);
			for (int k = 0; k < i; k++)
				close(sockets[k]);
			exporter(pair[1]);
		}
		close(pair[1]);
		sockets[i] = pair[0];
	}
}

static int from(int i)
{
	return write(sockets[i], "g", 1) == 1 ? receive_fd(sockets[i]) : -1;
}

static void end(int i)
{
	send(sockets[i], "e", 1, MSG_NOSIGNAL); /* it may have ended */
	waitpid(child[i], NULL, 0);
}

static CUresult child_round(int i)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;
	int fd = from(i);
	CUresult r;

	end(i);
	if (fd < 0) /* the limit refused the exporter, so nothing is there to map */
		return again = CUDA_ERROR_OUT_OF_MEMORY;
	r = TRY(cuMemImportFromShareableHandle, &h, (void *)(intptr_t)fd, FD);
	close(fd);
	if (r)
		return r;
	r = mapped(h, &at);
	again = r ? mapped(h, &at) : CUDA_SUCCESS;
	CALL(cuMemRelease, h);
	return r;
}

static int rounds_of(const char *how, int rounds)
{
	CUresult r = CUDA_SUCCESS;
	int n = 0;

	if (rounds > MOST_ROUNDS)
		rounds = MOST_ROUNDS;
	if (strcmp(how, "children") == 0)
		fork_exporters(rounds);
	begin();
	for (; n < rounds && !r; n += !r)
		r = strcmp(how, "children") == 0 ? child_round(n)
		    : strcmp(how, "pool") == 0   ? pool_round()
						 : own_round(how);
	printf("{\"granted\":%d,\"error\":%d,\"again\":%d,\"used\":%zu,\"nvml\":%ld}\n", n, r,
	       again, used() - idle, counted());
	for (int i = n; i < rounds && strcmp(how, "children") == 0; i++) {
		close(sockets[i]);
		waitpid(child[i], NULL, 0);
	}
	return 0;
}

static int together(void)
{
	CUmemGenericAllocationHandle h;
	size_t before, with, after;
	CUdeviceptr at;
	CUresult r;
	int fd;

	fork_exporters(1);
	begin();
	fd = from(0);
	before = used();
	CALL(cuMemImportFromShareableHandle, &h, (void *)(intptr_t)fd, FD);
	close(fd);
	r = mapped(h, &at);
	with = used();
	if (r == CUDA_SUCCESS)
		CALL(cuMemUnmap, at, size);
	CALL(cuMemRelease, h);
	end(0);
	after = used();
	printf("{\"error\":%d,\"before\":%zu,\"with\":%zu,\"after\":%zu}\n", r, before, with,
	       after);
	return 0;
}

static double export_us(CUdeviceptr p, int *fd)
{
	double began = now_s();

	CALL(cuMemGetHandleForAddressRange, fd, p, (size_t)64 << 10,
	     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ull);
	return (now_s() - began) * 1e6;
}

static int many(void)
{
	static int fd[EXPORTS];
	struct rlimit files = {8192, 8192};
	double first = 0, last = 0;
	size_t taken, freed;
	CUdeviceptr p;

	setrlimit(RLIMIT_NOFILE, &files);
	begin();
	CALL(cuMemAlloc_v2, &p, size);
	taken = used() - idle;
	for (int i = 0; i < EXPORTS; i++) {
		double us = export_us(p + ((size_t)i % 1024 << 16), &fd[i]);

		first += i < 100 ? us / 100 : 0;
		last += i >= EXPORTS - 100 ? us / 100 : 0;
	}
	for (int i = 0; i < EXPORTS; i++)
		close(fd[i]);
	CALL(cuMemFree_v2, p);
	freed = used() - idle;
	printf("{\"taken\":%zu,\"freed\":%zu,\"first_us\":%.1f,\"last_us\":%.1f}\n", taken, freed,
	       first, last);
	return 0;
}

static CUmemGenericAllocationHandle export(size_t bytes, int *fd)
{
	CUmemGenericAllocationHandle h;

	CALL(cuMemCreate, &h, bytes, &prop, 0ull);
	CALL(cuMemExportToShareableHandle, fd, h, FD, 0ull);
	return h;
}

static int reused(void)
{
	CUmemGenericAllocationHandle h;
	char link[64], path[256] = "";
	struct stat before, now;
	int fd, other;

	begin();
	h = export(size, &fd);
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	(void)!readlink(link, path, sizeof path - 1);
	fstat(fd, &before);
	close(fd);
	other = open(path, O_RDWR | O_CLOEXEC);
	if (other < 0 || (other != fd && dup2(other, fd) != fd) || fstat(fd, &now))
		return 3;
	CALL(cuMemRelease, h);
	printf("{\"same_inode\":%d,\"used\":%zd}\n",
	       before.st_ino == now.st_ino && before.st_dev == now.st_dev, used() - idle);
	return 0;
}

static int renamed(void)
{
	CUmemGenericAllocationHandle small, i;
	size_t with, imported;
	int fd, other;

	begin();
	CALL(cuMemRelease, export(size, &fd));
	small = export(2 * MIB, &other);
	dup2(other, fd);
	with = used() - idle;
	CALL(cuMemImportFromShareableHandle, &i, (void *)(intptr_t)fd, FD);
	close(fd);
	close(other);
	CALL(cuMemRelease, small);
	imported = used() - idle;
	CALL(cuMemRelease, i);
	printf("{\"used\":%zu,\"imported\":%zu,\"after\":%zu}\n", with, imported, used() - idle);
	return 0;
}

static int swapped(void)
{
	CUmemGenericAllocationHandle i;
	int fd, copy, other;
	CUdeviceptr at;

	begin();
	CALL(cuMemRelease, export(size, &fd));
	copy = dup(fd);
	close(fd);
	export(2 * MIB, &other);
	if (other != fd || dup2(copy, fd) != fd)
		return 3;
	if (TRY(cuMemImportFromShareableHandle, &i, (void *)(intptr_t)fd, FD) || mapped(i, &at))
		return 3;
	close(fd);
	close(copy);
	printf("{\"used\":%zu}\n", used() - idle);
	return 0;
}

/* What the cases above and the simulated card assume. */
static int facts(void)
{
	CUmemGenericAllocationHandle h, i;
	struct stat a, b;
	CUdeviceptr p;
	int fd, second, range;

	begin();
	CALL(cuMemCreate, &h, size, &prop, 0ull);
	printf("created: used %zu, NVML %ld\n", used() - idle, counted());
	CALL(cuMemExportToShareableHandle, &fd, h, FD, 0ull);
	CALL(cuMemExportToShareableHandle, &second, h, FD, 0ull);
	fstat(fd, &a);
	fstat(second, &b);
	printf("two exports: %s inode, kcmp %ld; F_GETSIG of a new one %d\n",
	       a.st_ino == b.st_ino ? "the same" : "another",
	       syscall(SYS_kcmp, getpid(), getpid(), 0, fd, second), fcntl(second, F_GETSIG));
	close(second);
	CALL(cuMemImportFromShareableHandle, &i, (void *)(intptr_t)fd, FD);
	printf("imported: used %zu, NVML %ld, %s handle\n", used() - idle, counted(),
	       h == i ? "the same" : "another");
	CALL(cuMemRelease, h);
	CALL(cuMemRelease, i);
	printf("descriptor alone: used %zu, NVML %ld\n", used() - idle, counted());
	close(fd);
	printf("closed: used %zu, NVML %ld\n", used() - idle, counted());
	CALL(cuMemAlloc_v2, &p, size);
	if (TRY(cuMemGetHandleForAddressRange, &range, p, (size_t)64 << 10,
		CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0ull) == CUDA_SUCCESS) {
		CALL(cuMemFree_v2, p);
		printf("dma-buf alone: used %zu, NVML %ld\n", used() - idle, counted());
		close(range);
	}
	prop.requestedHandleTypes = FABRIC;
	printf("a FABRIC allocation: error %d\n", TRY(cuMemCreate, &h, size, &prop, 0ull));
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void);
} cases[] = {{"many", many},         {"reused", reused}, {"renamed", renamed}, {"swapped", swapped},
	     {"together", together}, {"ipc", ipc},       {"facts", facts}};

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";

	libdir = opt(argc, argv, "--libdir", "");
	size = (size_t)atoi(opt(argc, argv, "--gib", "3")) << 30;
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
		if (strcmp(how, cases[i].name) == 0)
			return cases[i].run();
	return rounds_of(how, atoi(opt(argc, argv, "--rounds", "10")));
}
