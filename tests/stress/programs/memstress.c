/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memstress.c - many processes of one job allocate and free at random while
 * some are killed; somebody outside the library watches the card's own count.
 *
 *   memstress --lib LIBVGPU [--limit BYTES] [--workers 16] [--secs 60]
 *             [--kill-ms 200] [--libdir DIR] [--cache FILE]
 *
 * Plain driver API through dlopen: the same program on a real and on the
 * simulated card. The parent runs without the library, asks NVML every 10 ms and
 * prints one JSON line; exit status 1 when the count was ever above the limit,
 * when the cache does not say 0 at the end, or when nothing was tested.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "../../../libvgpu/region_ops.h"
#include "common.h"

#define MAX_WORKERS 64
#define HELD 24
#define MIB (1ull << 20)
/* What another part of the driver may come and go with. */
#define SLACK (2 * MIB)

/* ------------------------------------------------------------------- worker */
struct tally {
	uint64_t granted, refused, odd; /* odd: an error that is not out-of-memory */
	uint64_t alive;                 /* workers that got as far as a context */
};

#define GET(var, name)                                \
	do {                                          \
		*(void **)&(var) = dlsym(cuda, name); \
		if (!(var))                           \
			_exit(3);                     \
	} while (0)

static CUresult (*alloc)(CUdeviceptr *, size_t), (*release)(CUdeviceptr);
static CUresult (*pitch)(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
static CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream),
	(*free_async)(CUdeviceptr, CUstream);
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
			  unsigned long long);
static CUresult (*mem_release)(CUmemGenericAllocationHandle);
static CUresult (*sync_ctx)(void);

struct held {
	int route;
	CUdeviceptr ptr;
};

static CUresult take(struct held *h, size_t bytes)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t p;

	switch (h->route) {
	case 0:
		return alloc(&h->ptr, bytes);
	case 1:
		return pitch(&h->ptr, &p, MIB, bytes / MIB, 16);
	case 2:
		return alloc_async(&h->ptr, bytes, NULL);
	default:
		return create(&h->ptr, bytes, &prop, 0);
	}
}

static void give(struct held *h)
{
	if (h->route == 2)
		free_async(h->ptr, NULL);
	else if (h->route == 3)
		mem_release(h->ptr);
	else
		release(h->ptr);
	h->ptr = 0;
}

static int worker(const char *libdir, struct tally *t, unsigned seed)
{
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
	void *cuda = library(libdir, "libcuda.so.1");
	struct held held[HELD] = {0};
	CUcontext ctx;
	CUresult r;

	if (!cuda)
		return 3;
	GET(init, "cuInit");
	GET(retain, "cuDevicePrimaryCtxRetain");
	GET(set_current, "cuCtxSetCurrent");
	GET(alloc, "cuMemAlloc_v2");
	GET(release, "cuMemFree_v2");
	GET(pitch, "cuMemAllocPitch_v2");
	GET(alloc_async, "cuMemAllocAsync");
	GET(free_async, "cuMemFreeAsync");
	GET(create, "cuMemCreate");
	GET(mem_release, "cuMemRelease");
	GET(sync_ctx, "cuCtxSynchronize");
	if (init(0) != CUDA_SUCCESS)
		return 3;
	/* The context itself may not fit just now, like on a smaller card. */
	while ((r = retain(&ctx, 0)) == CUDA_ERROR_OUT_OF_MEMORY)
		usleep(20000);
	if (r != CUDA_SUCCESS || set_current(ctx) != CUDA_SUCCESS)
		return 3;
	__atomic_add_fetch(&t->alive, 1, __ATOMIC_RELAXED);
	for (;;) {
		struct held *h = &held[rand_r(&seed) % HELD];

		if (h->ptr) {
			give(h);
			continue;
		}
		h->route = (int)(rand_r(&seed) % 4);
		r = take(h, (size_t)(rand_r(&seed) % 48 + 1) * 2 * MIB);
		if (r == CUDA_SUCCESS)
			__atomic_add_fetch(&t->granted, 1, __ATOMIC_RELAXED);
		else if (r == CUDA_ERROR_OUT_OF_MEMORY)
			__atomic_add_fetch(&t->refused, 1, __ATOMIC_RELAXED);
		else
			__atomic_add_fetch(&t->odd, 1, __ATOMIC_RELAXED);
		if (r != CUDA_SUCCESS)
			h->ptr = 0;
		if (rand_r(&seed) % 16 == 0)
			sync_ctx();
		usleep(rand_r(&seed) % 2000);
	}
}

/* ------------------------------------------------------------------ outsider */
static nvmlReturn_t (*nvml_memory)(nvmlDevice_t, nvmlMemory_t *);
static nvmlReturn_t (*nvml_processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
static nvmlDevice_t device;

static uint64_t card_used(void)
{
	nvmlMemory_t m = {0};

	nvml_memory(device, &m);
	return m.used;
}

/* That of the workers is the first that CUDA is let see, by its number. */
static int open_nvml(const char *libdir)
{
	void *lib = library(libdir, "libnvidia-ml.so.1");
	const char *seen = getenv("CUDA_VISIBLE_DEVICES");
	unsigned card = seen ? (unsigned)strtoul(seen, NULL, 10) : 0;
	nvmlReturn_t (*init)(void), (*by_index)(unsigned, nvmlDevice_t *);

	if (!lib)
		return -1;
	*(void **)&init = dlsym(lib, "nvmlInit_v2");
	*(void **)&by_index = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml_memory = dlsym(lib, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml_processes = dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3");
	return init && by_index && nvml_memory && init() == 0 && by_index(card, &device) == 0 ? 0
											      : -1;
}

/* Who holds what, by the card and by the slots: to find out why. */
static void explain(const char *path, uint64_t mine)
{
	static int told;
	nvmlProcessInfo_t info[128];
	unsigned n = 128;
	struct vgpu_cache c;
	uint64_t slots = 0, card = 0;
	int fd;
	char *p;

	if (!nvml_processes || told++ >= 6 || nvml_processes(device, &n, info) != 0)
		return;
	fd = open(path, O_RDWR | O_CLOEXEC);
	p = fd < 0 ? MAP_FAILED : mmap(NULL, VGPU_CACHE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (p == MAP_FAILED)
		return;
	c.header = (void *)(p + VGPU_CACHE_OFFSET);
	c.slots = (void *)(p + VGPU_SLOTS_OFFSET);
	slots = vgpu_mem_sum(&c, 0);
	for (unsigned i = 0; i < n; i++)
		card += info[i].usedGpuMemory;
	fprintf(stderr, "above: device %llu MiB, processes %llu in %u, slots %llu:",
		(unsigned long long)(mine / MIB), (unsigned long long)(card / MIB), n,
		(unsigned long long)(slots / MIB));
	for (unsigned i = 0; i < n; i++) {
		long long slot = -1;

		for (uint32_t k = 0; k < c.header->high_slot; k++)
			if (VGPU_OWNER_PID(c.slots[k].owner) == info[i].pid)
				slot = (long long)(c.slots[k].card[0].mem / MIB);
		fprintf(stderr, " %u:%llu/%lld", info[i].pid,
			(unsigned long long)(info[i].usedGpuMemory / MIB), slot);
	}
	fprintf(stderr, "\n");
	munmap(p, VGPU_CACHE_SIZE);
}

static char self[512];

static pid_t start_worker(int argc, char **argv, int tally_fd, unsigned seed)
{
	char fd[16], s[16];
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	snprintf(fd, sizeof fd, "%d", tally_fd);
	snprintf(s, sizeof s, "%u", seed);
	setenv("LD_PRELOAD", opt(argc, argv, "--lib", ""), 1);
	setenv("CUDA_DEVICE_MEMORY_LIMIT", opt(argc, argv, "--limit", "17179869184"), 1);
	setenv("CUDA_DEVICE_MEMORY_SHARED_CACHE",
	       opt(argc, argv, "--cache", "/tmp/memstress.cache"), 1);
	execl(self, "memstress", "--worker", fd, s, opt(argc, argv, "--libdir", ""), (char *)NULL);
	_exit(3);
}

/* What the cache says when everybody is gone. */
static uint64_t cache_says(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct vgpu_cache c;
	uint64_t left;
	char *p;

	if (fd < 0)
		return UINT64_MAX;
	p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return UINT64_MAX;
	c.header = (void *)(p + VGPU_CACHE_OFFSET);
	c.slots = (void *)(p + VGPU_SLOTS_OFFSET);
	/* Notes the deaths, lets the grace run out, cleans up. */
	vgpu_slot_reclaim(&c, NULL, NULL, &left);
	usleep(VGPU_GRACE_NS / 1000 + 1000);
	vgpu_slot_reclaim(&c, NULL, NULL, &left);
	return vgpu_mem_sum(&c, 0);
}

int main(int argc, char **argv)
{
	int workers = atoi(opt(argc, argv, "--workers", "16")), fd;
	double secs = atof(opt(argc, argv, "--secs", "60")), next_kill, end;
	double kill_s = atof(opt(argc, argv, "--kill-ms", "200")) / 1000;
	uint64_t limit = strtoull(opt(argc, argv, "--limit", "17179869184"), NULL, 10);
	const char *cache = opt(argc, argv, "--cache", "/tmp/memstress.cache");
	uint64_t base, worst = 0, samples = 0, above = 0, killed = 0, left, said;
	struct tally *t;
	pid_t pid[MAX_WORKERS];
	unsigned seed = 1;

	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 3;
	if (argc > 4 && strcmp(argv[1], "--worker") == 0) {
		t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
		return t == MAP_FAILED ? 3 : worker(argv[4], t, (unsigned)atoi(argv[3]));
	}
	if (workers < 1 || workers > MAX_WORKERS ||
	    open_nvml(opt(argc, argv, "--libdir", "")) != 0) {
		fprintf(stderr, "memstress: want 1 to %d workers and an NVML\n", MAX_WORKERS);
		return 3;
	}
	unlink(cache);
	fd = memfd_create("tally", 0);
	if (fd < 0 || ftruncate(fd, sizeof *t) != 0)
		return 3;
	t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	base = card_used();
	for (int i = 0; i < workers; i++)
		pid[i] = start_worker(argc, argv, fd, ++seed);
	end = now_s() + secs;
	next_kill = now_s() + 1;
	while (now_s() < end) {
		uint64_t used = card_used(), mine = used > base ? used - base : 0;

		samples++;
		if (mine > worst)
			worst = mine;
		if (mine > limit + SLACK) {
			above++;
			explain(cache, mine);
		}
		if (now_s() >= next_kill) {
			int victim = (int)(rand_r(&seed) % (unsigned)workers);

			kill(pid[victim], SIGKILL);
			waitpid(pid[victim], NULL, 0);
			killed++;
			pid[victim] = start_worker(argc, argv, fd, ++seed);
			next_kill = now_s() + kill_s;
		}
		usleep(10000);
	}
	for (int i = 0; i < workers; i++) {
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
	}
	usleep(500000);
	left = card_used();
	said = cache_says(cache);
	printf("{\"bench\":\"memstress\",\"workers\":%d,\"secs\":%.0f,\"limit_mib\":%llu,"
	       "\"worst_mib\":%llu,\"samples\":%llu,\"above\":%llu,\"granted\":%llu,\"refused\":%"
	       "llu,"
	       "\"odd_errors\":%llu,\"contexts\":%llu,\"killed\":%llu,\"left_mib\":%lld,"
	       "\"cache_says\":%llu}\n",
	       workers, secs, (unsigned long long)(limit / MIB), (unsigned long long)(worst / MIB),
	       (unsigned long long)samples, (unsigned long long)above,
	       (unsigned long long)t->granted, (unsigned long long)t->refused,
	       (unsigned long long)t->odd, (unsigned long long)t->alive, (unsigned long long)killed,
	       ((long long)left - (long long)base) / (long long)MIB, (unsigned long long)said);
	return above || said != 0 || t->granted == 0 || t->refused == 0 || t->odd ? 1 : 0;
}
