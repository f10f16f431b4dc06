/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagecost.c - what memory beyond a job's physical share costs (mem_scaling).
 *
 *   pagecost --lib LIBRARY [--physical MIB] [--limit MIB] [--libdir DIR]
 *
 * A process under a grant of that limit, of which the card has less, takes all of
 * it in pieces. Pieces within the physical share are plain memory, those beyond
 * are paged. Of each kind: time of an allocation, rate of the first pass of a
 * kernel that reads and writes everything, and of later ones; of the paged kind
 * also the rates after its pages were moved to the host, by faults and by prefetch.
 * One JSON line; rates in GB/s, 10^9 bytes of memory passed over in a second.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../libvgpu/driver/cuda_abi.h"
#include "../../../libvgpu/region.h"
#include "common.h"

#define MIB (1ull << 20)
#define PIECE (64 * MIB)
#define MOST 1024
#define PASSES 20
#define BLOCKS 1056
#define THREADS 256
#define CPU_DEVICE (-1)

/* pass(p, n): adds one to n words of 16 bytes, a stride of the grid apart. */
static const char ptx[] =
	"// simgpu: entry=pass ns_per_unit=1 unit_param=1\n"
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry pass(.param .u64 pass_p, .param .u32 pass_n)\n{\n"
	".reg .pred %p;\n.reg .b32 %i, %n, %s, %t, %a, %b, %c, %d;\n.reg .b64 %q, %o;\n"
	"ld.param.u64 %q, [pass_p];\ncvta.to.global.u64 %q, %q;\n"
	"ld.param.u32 %n, [pass_n];\n"
	"mov.u32 %i, %ctaid.x;\nmov.u32 %s, %ntid.x;\nmov.u32 %t, %tid.x;\n"
	"mad.lo.u32 %i, %i, %s, %t;\nmov.u32 %t, %nctaid.x;\nmul.lo.u32 %s, %s, %t;\n"
	"L:\nsetp.ge.u32 %p, %i, %n;\n@%p bra E;\n"
	"mul.wide.u32 %o, %i, 16;\nadd.u64 %o, %o, %q;\n"
	"ld.global.v4.u32 {%a, %b, %c, %d}, [%o];\n"
	"add.u32 %a, %a, 1;\nst.global.v4.u32 [%o], {%a, %b, %c, %d};\n"
	"add.u32 %i, %i, %s;\nbra L;\nE:\nret;\n}\n";

/* The grant of a job of one card. */
/* As gresd makes it. */
static int write_cache(const char *path, const struct vgpu_grant *g)
{
	struct vgpu_cache_header h = {.magic = VGPU_CACHE_MAGIC,
				      .version = VGPU_REGION_VERSION,
				      .size = (uint32_t)(VGPU_CACHE_SIZE - VGPU_CACHE_OFFSET),
				      .job_id = g->job_id,
				      .uid = g->uid,
				      .ncards = g->ncards,
				      .max_slots = VGPU_MAX_SLOTS};
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	memcpy(h.uuid[0], g->card[0].uuid, sizeof h.uuid[0]);
	h.mem_limit[0] = g->card[0].mem_limit;
	if (fd < 0 || ftruncate(fd, (off_t)VGPU_CACHE_SIZE) ||
	    pwrite(fd, &h, sizeof h, (off_t)VGPU_CACHE_OFFSET) != (ssize_t)sizeof h)
		return -1;
	return close(fd);
}

static int write_grant(const char *path, const char *cache, const char *libdir, uint64_t limit,
		       uint64_t physical)
{
	struct vgpu_grant g = {.magic = VGPU_GRANT_MAGIC,
			       .version = VGPU_REGION_VERSION,
			       .size = sizeof g,
			       .job_id = 1,
			       .uid = (uint32_t)getuid(),
			       .gid = (uint32_t)getgid(),
			       .ncards = 1};
	void *nvml = library(libdir, "libnvidia-ml.so.1"), *device;
	int (*init)(void), (*by_index)(unsigned, void **), (*uuid)(void *, char *, unsigned);
	int fd;

	if (!nvml)
		return -1;
	*(void **)&init = dlsym(nvml, "nvmlInit_v2");
	*(void **)&by_index = dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&uuid = dlsym(nvml, "nvmlDeviceGetUUID");
	if (!init || !by_index || !uuid || init() || by_index(0, &device) ||
	    uuid(device, g.card[0].uuid, sizeof g.card[0].uuid))
		return -1;
	g.card[0].mem_limit = limit;
	g.card[0].mem_physical = physical;
	g.card[0].mem_overhead = 528 * MIB;
	g.card[0].share = g.card[0].cores = 100;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, &g, sizeof g) != (ssize_t)sizeof g || close(fd))
		return -1;
	return write_cache(cache, &g);
}

#define GET(var, name)                                \
	do {                                          \
		*(void **)&(var) = dlsym(cuda, name); \
		if (!(var))                           \
			return 3;                     \
	} while (0)

static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  unsigned, CUstream, void **, void **);
static CUresult (*sync_ctx)(void);
static CUresult (*prefetch)(CUdeviceptr, size_t, CUdevice, CUstream);

struct kind {
	CUdeviceptr piece[MOST];
	int n;
	double alloc_s, first_s, pass_s;
};

static int pass_over(CUfunction f, const struct kind *k, double *took)
{
	unsigned words = PIECE / 16;
	double t = now_s();

	for (int i = 0; i < k->n; i++) {
		CUdeviceptr p = k->piece[i];
		void *args[] = {&p, &words};

		if (launch(f, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, args, NULL))
			return -1;
	}
	if (sync_ctx())
		return -1;
	*took = now_s() - t;
	return 0;
}

static int move(const struct kind *k, CUdevice to, double *took)
{
	double t = now_s();

	for (int i = 0; i < k->n; i++)
		if (prefetch(k->piece[i], PIECE, to, NULL))
			return -1;
	if (sync_ctx())
		return -1;
	*took = now_s() - t;
	return 0;
}

static int passes(CUfunction f, struct kind *k)
{
	double took, best = 0;

	if (pass_over(f, k, &k->first_s))
		return -1;
	for (int i = 0; i < PASSES; i++) {
		if (pass_over(f, k, &took))
			return -1;
		if (!i || took < best)
			best = took;
	}
	k->pass_s = best;
	return 0;
}

static double rate(const struct kind *k, double s)
{
	return s > 0 ? (double)k->n * (double)PIECE / s / 1e9 : 0;
}

/* Which pieces are paged is asked of the driver, not guessed. */
static int take_all(void *cuda, struct kind kinds[2])
{
	CUresult (*alloc)(CUdeviceptr *, size_t), (*attribute)(void *, int, CUdeviceptr);
	int managed;

	GET(alloc, "cuMemAlloc_v2");
	GET(attribute, "cuPointerGetAttribute");
	for (;;) {
		CUdeviceptr p;
		double t = now_s();
		CUresult r = alloc(&p, PIECE);
		struct kind *k;

		t = now_s() - t;
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			return 0;
		if (r || attribute(&managed, 8 /* IS_MANAGED */, p))
			return 4;
		k = &kinds[managed != 0];
		if (k->n == MOST)
			return 5;
		k->piece[k->n++] = p;
		k->alloc_s += t;
	}
}

static int child(const char *libdir)
{
	static struct kind kinds[2];
	struct kind *plain = &kinds[0], *paged = &kinds[1];
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*set_current)(CUcontext);
	CUresult (*load)(CUmodule *, const void *), (*get)(CUfunction *, CUmodule, const char *);
	double out, faults, in, took;
	void *cuda = library(libdir, "libcuda.so.1");
	CUcontext ctx;
	CUmodule module;
	CUfunction f;
	int rc;

	if (!cuda)
		return 3;
	GET(init, "cuInit");
	GET(retain, "cuDevicePrimaryCtxRetain");
	GET(set_current, "cuCtxSetCurrent");
	GET(load, "cuModuleLoadData");
	GET(get, "cuModuleGetFunction");
	GET(launch, "cuLaunchKernel");
	GET(sync_ctx, "cuCtxSynchronize");
	GET(prefetch, "cuMemPrefetchAsync");
	if (init(0) || retain(&ctx, 0) || set_current(ctx) || load(&module, ptx) ||
	    get(&f, module, "pass"))
		return 4;
	rc = take_all(cuda, kinds);
	if (rc || !plain->n || !paged->n)
		return rc ? rc : 6;
	if (passes(f, plain) || passes(f, paged) || move(paged, CPU_DEVICE, &out) ||
	    pass_over(f, paged, &faults) || move(paged, CPU_DEVICE, &took) || move(paged, 0, &in) ||
	    pass_over(f, paged, &took))
		return 7;
	printf("{\"bench\":\"pagecost\",\"plain_mib\":%llu,\"paged_mib\":%llu,"
	       "\"alloc_us\":[%.1f,%.1f],\"first_gbs\":[%.1f,%.1f],\"pass_gbs\":[%.1f,%.1f],"
	       "\"to_host_gbs\":%.1f,\"faults_gbs\":%.1f,\"prefetch_gbs\":%.1f,\"then_gbs\":%.1f}"
	       "\n",
	       plain->n * PIECE / MIB, paged->n * PIECE / MIB, plain->alloc_s / plain->n * 1e6,
	       paged->alloc_s / paged->n * 1e6, rate(plain, plain->first_s),
	       rate(paged, paged->first_s), rate(plain, plain->pass_s), rate(paged, paged->pass_s),
	       rate(paged, out), rate(paged, faults), rate(paged, in), rate(paged, took));
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t limit = strtoull(opt(argc, argv, "--limit", "8192"), NULL, 10) * MIB;
	uint64_t physical = strtoull(opt(argc, argv, "--physical", "4608"), NULL, 10) * MIB;
	const char *lib = opt(argc, argv, "--lib", ""), *libdir = opt(argc, argv, "--libdir", "");
	char self[512] = {0}, grant[] = "/tmp/pagecost.XXXXXX", cache[64];
	int fd, status;
	pid_t pid;

	if (argc > 2 && strcmp(argv[1], "--child") == 0)
		return child(argv[2]);
	if (!*lib || physical >= limit || readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
		fprintf(stderr, "pagecost: want --lib LIBRARY and --physical below --limit\n");
		return 2;
	}
	fd = mkstemp(grant);
	snprintf(cache, sizeof cache, "%s.cache", grant);
	if (fd < 0 || close(fd) || write_grant(grant, cache, libdir, limit, physical)) {
		fprintf(stderr, "pagecost: no grant: is there an NVML?\n");
		return 3;
	}
	pid = fork();
	if (pid == 0) {
		setenv("LD_PRELOAD", lib, 1);
		setenv("VGPU_GRANT", grant, 1);
		setenv("VGPU_CACHE", cache, 1);
		execl(self, "pagecost", "--child", libdir, (char *)NULL);
		_exit(9);
	}
	waitpid(pid, &status, 0);
	unlink(grant);
	unlink(cache);
	if (status)
		fprintf(stderr, "pagecost: the process under the grant failed (%#x)\n", status);
	return status ? 1 : 0;
}
