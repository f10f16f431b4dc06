/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - this process's grant, cache and slot, and which card is which.
 * Reads /run/vgpu/self first: inside a job's mount namespace it is the grant
 * that gresd wrote, and nothing in the environment can change it.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vgpu.h"

#define SELF_GRANT "/run/vgpu/self/grant"
#define SELF_CACHE "/run/vgpu/self/cache"
#define MAX_DEVICES 64
#define UNKNOWN_CARD (-2)

struct vgpu_state vgpu_state;
int vgpu_only_card = -1;

static pthread_once_t attach_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t claim_lock = PTHREAD_MUTEX_INITIALIZER; /* of a forked child's claim */
static struct vgpu_grant env_grant;
static signed char card_of_device[MAX_DEVICES];
/* The period of the slices that processes without gresd set for themselves. */
#define ENV_PERIOD_US 20000u
/* Taken for a context's cost until the card's own count is known: the largest
 * measured (527 MiB, H200, driver 580). */
#define ENV_CONTEXT_BYTES (528ull << 20)

uint64_t vgpu_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ------------------------------------------------------------------ mapping */
/* The process has a job, and its grant or cache cannot be used: it must not be taken for
 * one without limits, nor have a whole limit for itself. See refuse_all(). */
static struct {
	const char *what, *path, *want;
	char why[96];
} trouble;

#define WANT_ROOM "room for a few files before the first CUDA call, see ulimit -n"
#define WANT_OURS "gresd's own file, read as the job's user by the libvgpu.so of this node"

/* error: an errno; 0: as why says. */
static void refuse(const char *what, const char *path, int error, const char *why)
{
	bool room = error == EMFILE || error == ENFILE || error == ENOMEM;

	trouble.what = what;
	trouble.path = path;
	trouble.want = room ? WANT_ROOM : WANT_OURS;
	snprintf(trouble.why, sizeof trouble.why, "%s", error ? strerror(error) : why);
}

/* Maps a file of so many bytes, or says in errno why not; 0: it is too short. */
static void *map(int fd, size_t size, int prot)
{
	struct stat st;
	void *p = MAP_FAILED;

	errno = 0;
	if (fstat(fd, &st) == 0 && st.st_size >= (off_t)size)
		p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* Outside of jobs the place of a grant is an empty file, on which each is mounted. */
static bool is_place(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

/* NULL, without trouble: there is no such file, and so no job. */
static const struct vgpu_grant *map_grant(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), error = errno;
	bool none = fd < 0 && (error == ENOENT || error == ENOTDIR);
	const struct vgpu_grant *g = NULL;

	if (fd >= 0) {
		none = is_place(fd) && strcmp(path, SELF_GRANT) == 0;
		g = map(fd, sizeof *g, PROT_READ);
		error = errno;
		close(fd);
	}
	if (none)
		return NULL;
	if (!g) {
		refuse("grant", path, error, "too short");
	} else if (!vgpu_grant_valid(g, sizeof *g)) {
		refuse("grant", path, 0, "not a grant");
		if (g->magic == VGPU_GRANT_MAGIC && g->version != VGPU_REGION_VERSION)
			snprintf(trouble.why, sizeof trouble.why,
				 "version %u, this libvgpu.so reads %u", g->version,
				 VGPU_REGION_VERSION);
		munmap((void *)g, sizeof *g);
		g = NULL;
	}
	return g;
}

static void use_cache(void *p)
{
	vgpu_state.cache.header = (void *)((char *)p + VGPU_CACHE_OFFSET);
	vgpu_state.cache.slots = (void *)((char *)p + VGPU_SLOTS_OFFSET);
}

/* A new file of the environment's. One of another user is not shared with: its owner
 * could truncate it under our feet. */
static bool stretch(int fd)
{
	struct vgpu_signal_hold hold;
	struct stat st;
	int r;

	if (fstat(fd, &st) != 0)
		return false;
	if (st.st_uid != geteuid()) {
		errno = EPERM;
		return false;
	}
	if (st.st_size >= (off_t)VGPU_CACHE_SIZE)
		return true;
	/* Above ulimit -f the kernel would end the program. */
	vgpu_signal_hold(&hold, SIGXFSZ);
	r = ftruncate(fd, (off_t)VGPU_CACHE_SIZE);
	vgpu_signal_drop(&hold, r != 0);
	return r == 0;
}

/* create: make the file when there is none (no gresd, several processes). */
static bool map_cache(const char *path, bool create)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0600);
	int error = errno;
	void *p = NULL;

	if (fd >= 0) {
		if (!create || stretch(fd))
			p = map(fd, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE);
		error = errno;
		close(fd);
	}
	if (!p) {
		refuse("cache", path, error, "too short");
		return false;
	}
	use_cache(p);
	/* On a full file system a look at a new file ends the process. */
	if (!create || vgpu_has_pages(vgpu_state.cache.header, sizeof *vgpu_state.cache.header)) {
		if (create && vgpu_state.cache.header->magic == 0)
			vgpu_cache_init(vgpu_state.cache.header, vgpu_state.grant);
		if (vgpu_cache_valid(vgpu_state.cache.header, VGPU_CACHE_SIZE) &&
		    vgpu_state.cache.header->max_slots == VGPU_MAX_SLOTS)
			return true;
	}
	refuse("cache", path, 0, "not a cache of this version");
	munmap(p, VGPU_CACHE_SIZE);
	return false;
}

/* Limits of the environment hold for this process alone where no file is shared. */
static void private_cache(void)
{
	void *p = mmap(NULL, VGPU_CACHE_SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		refuse("cache", "CUDA_DEVICE_MEMORY_SHARED_CACHE", ENOMEM, "");
		return;
	}
	if (trouble.what)
		vgpu_warn("vgpu: cache: %s: %s: the limits hold for this process alone",
			  trouble.path, trouble.why);
	trouble.what = NULL;
	use_cache(p);
	vgpu_cache_init(vgpu_state.cache.header, vgpu_state.grant);
}

/* No slot is to be had: a limit that cannot be counted refuses. */
static struct vgpu_slot no_slot;

static void claim_slot(void)
{
	uint32_t pid = (uint32_t)getpid();

	errno = 0;
	vgpu_state.slot = vgpu_slot_claim(&vgpu_state.cache, pid, vgpu_own_start_time());
	vgpu_state.counted = vgpu_state.slot != NULL;
	if (!vgpu_state.counted) {
		bool full = errno == ENOSPC;

		vgpu_state.slot = &no_slot;
		if (full)
			vgpu_warn("vgpu: cache: the node has no room left in gresd's run_dir: "
				  "this process gets no GPU memory");
		else
			vgpu_warn("vgpu: cache: all %u places for processes of this job are taken: "
				  "this process gets no GPU memory",
				  VGPU_MAX_SLOTS);
	}
	__atomic_store_n(&vgpu_state.slot->heartbeat_ns, vgpu_now(), __ATOMIC_RELAXED);
}

/* Static weights: with no arbiter each process asks for its share of a fixed
 * period, which divides the card by weight among those that do the same. */
static void env_schedule(void)
{
	for (unsigned i = 0; i < env_grant.ncards; i++) {
		struct vgpu_grant_card *c = &env_grant.card[i];
		bool limited = c->mode == VGPU_MODE_HARD && c->cores < 100;

		c->gate = limited;
		c->slice_us = c->mode == VGPU_MODE_OFF || c->cores >= 100
				      ? 0
				      : ENV_PERIOD_US * c->cores / 100;
		c->weight_ppm = 1000000;
		c->mem_overhead = ENV_CONTEXT_BYTES;
	}
}

/* A forked child that has not asked for CUDA since; see vgpu_attach(). */
static bool unclaimed;
static struct vgpu_slot child_slot;

/* The parent's slot, memory, channel groups and locks are not ours. */
static void in_child(void)
{
	vgpu_entry_in_child();
	vgpu_tables_in_child();
	vgpu_overhead_in_child();
	vgpu_contexts_in_child();
	vgpu_watcher_in_child();
	vgpu_rm_forget();
	vgpu_gate_in_child();
	vgpu_pools_in_child();
	vgpu_shared_in_child();
	vgpu_working_in_child();
	vgpu_ended_in_child();
	pthread_mutex_init(&claim_lock, NULL);
	unclaimed = vgpu_state.grant && !trouble.what;
	if (unclaimed) {
		memset(&child_slot, 0, sizeof child_slot);
		vgpu_state.slot = &child_slot;
		vgpu_state.counted = false;
	}
}

/* No card is granted, and so no memory of any. Takes nothing that could fail. */
static void refuse_all(void)
{
	static struct vgpu_grant nothing;
	static struct vgpu_cache_header nobody;

	vgpu_warn("vgpu: %s: %s: %s: this process gets no GPU memory: want %s", trouble.what,
		  trouble.path, trouble.why, trouble.want);
	vgpu_state.cache.header = &nobody;
	vgpu_state.slot = &no_slot;
	vgpu_state.grant = &nothing;
}

/* Paths in the environment are the user's. A set-user-id program, which the preload
 * list reaches, would make and stretch files there with the rights of another. */
static void find(void)
{
	const char *grant = secure_getenv("VGPU_GRANT"), *cache = secure_getenv("VGPU_CACHE");

	memset(card_of_device, UNKNOWN_CARD, sizeof card_of_device);
	vgpu_state.grant = map_grant(SELF_GRANT);
	if (vgpu_state.grant)
		cache = SELF_CACHE;
	else if (!trouble.what && grant && *grant)
		vgpu_state.grant = map_grant(grant);
	if (!trouble.what && !vgpu_state.grant && vgpu_grant_from_env(&env_grant)) {
		env_schedule();
		vgpu_state.grant = &env_grant;
		vgpu_state.from_env = true;
		cache = secure_getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
		if (!cache || !*cache || !map_cache(cache, true))
			private_cache();
	} else if (vgpu_state.grant && cache && *cache) {
		map_cache(cache, false);
	} else if (vgpu_state.grant) {
		refuse("cache", "VGPU_CACHE", 0, "not set");
	}
	if (trouble.what)
		refuse_all();
	if (trouble.what || !vgpu_state.grant)
		return;
	/* No release at exit: the card keeps the process's memory until it is really
	 * gone, so the slot must count that long too. Peers and gresd take it back. */
	claim_slot();
	vgpu_state.ncards = vgpu_state.grant->ncards;
}

/* CUDA_VISIBLE_DEVICES; NULL: not set. */
static const char *visible;

/* A copy: the program may change its environment while other threads run. */
static void read_visible(void)
{
	const char *value = getenv("CUDA_VISIBLE_DEVICES");

	visible = value ? strdup(value) : NULL;
}

static void attach(void)
{
	vgpu_tell_settings();
	vgpu_log_settings();
	read_visible();
	find();
	pthread_atfork(NULL, NULL, in_child);
	if (!trouble.what)
		vgpu_tell_grant();
}

void vgpu_attach(void)
{
	pthread_once(&attach_once, attach);
	pthread_mutex_lock(&claim_lock);
	if (unclaimed)
		claim_slot();
	unclaimed = false;
	pthread_mutex_unlock(&claim_lock);
}

/* ------------------------------------------------------------ which card it is */
uint64_t vgpu_limit(int card)
{
	return vgpu_state.grant->card[card].mem_limit;
}

static int card_of_uuid(const char *uuid)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++)
		/* without "GPU-" or "MIG-", which CUDA does not tell apart */
		if (strncmp(vgpu_state.grant->card[i].uuid + 4, uuid + 4, VGPU_UUID_LEN - 4) == 0)
			return (int)i;
	return -1;
}

static void format_uuid(const CUuuid *u, char out[VGPU_UUID_LEN])
{
	const unsigned char *b = (const unsigned char *)u->bytes;

	snprintf(out, VGPU_UUID_LEN,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

/* What an environment's limit goes beyond, where it may. */
static void learn_physical(struct vgpu_grant_card *c, CUdevice dev)
{
	size_t total = 0;

	if (c->mem_physical != VGPU_MEM_OF_CARD)
		return;
	if (!vgpu_real.cuDeviceTotalMem_v2 ||
	    vgpu_real.cuDeviceTotalMem_v2(&total, dev) != CUDA_SUCCESS)
		total = 0;
	c->mem_physical = c->mem_limit > total ? total : 0;
}

int vgpu_card_of_device(CUdevice dev)
{
	char text[VGPU_UUID_LEN];
	CUuuid uuid;
	CUresult r = -1;
	int card, n;

	if (!vgpu_state.grant || dev < 0 || dev >= MAX_DEVICES)
		return -1;
	card = __atomic_load_n(&card_of_device[dev], __ATOMIC_RELAXED);
	if (card != UNKNOWN_CARD)
		return card;
	if (vgpu_real.cuDeviceGetUuid_v2)
		r = vgpu_real.cuDeviceGetUuid_v2(&uuid, dev);
	if (r != CUDA_SUCCESS && vgpu_real.cuDeviceGetUuid)
		r = vgpu_real.cuDeviceGetUuid(&uuid, dev);
	if (r != CUDA_SUCCESS)
		return -1;
	format_uuid(&uuid, text);
	if (vgpu_state.from_env) {
		/* Limits by CUDA ordinal: note the UUID, so that NVML agrees. */
		card = dev < VGPU_MAX_CARDS ? dev : -1;
		if (card >= 0) {
			memcpy(env_grant.card[card].uuid, text, sizeof text);
			learn_physical(&env_grant.card[card], dev);
		}
	} else {
		card = card_of_uuid(text);
	}
	__atomic_store_n(&card_of_device[dev], (signed char)card, __ATOMIC_RELAXED);
	if (vgpu_real.cuDeviceGetCount && vgpu_real.cuDeviceGetCount(&n) == CUDA_SUCCESS && n == 1)
		__atomic_store_n(&vgpu_only_card, card, __ATOMIC_RELEASE);
	return card;
}

bool vgpu_not_granted(CUdevice dev)
{
	static bool said;

	if (!vgpu_state.grant || vgpu_state.from_env || dev < 0 || dev >= MAX_DEVICES ||
	    vgpu_card_of_device(dev) >= 0)
		return false;
	/* Only where its UUID was told: an error here is the driver's to report. */
	if (__atomic_load_n(&card_of_device[dev], __ATOMIC_RELAXED) == UNKNOWN_CARD)
		return false;
	if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
		vgpu_warn("vgpu: CUDA device %d: not one of the cards that this job was "
			  "granted: see CUDA_VISIBLE_DEVICES",
			  dev);
	return true;
}

void vgpu_env_cards(void)
{
	int n = 0;

	if (vgpu_real.cuDeviceGetCount && vgpu_real.cuDeviceGetCount(&n) == CUDA_SUCCESS && n > 0 &&
	    n < VGPU_MAX_CARDS)
		vgpu_state.ncards = env_grant.ncards = (uint32_t)n;
	for (int i = 0; i < n && i < VGPU_MAX_CARDS; i++)
		vgpu_card_of_device(i);
}

int vgpu_card_asked(void)
{
	CUdevice dev;

	if (!vgpu_state.grant || !vgpu_real.cuCtxGetDevice ||
	    vgpu_real.cuCtxGetDevice(&dev) != CUDA_SUCCESS)
		return -1;
	return vgpu_card_of_device(dev);
}

/* Limits by CUDA ordinal in a program that only asks NVML, such as nvidia-smi: what
 * CUDA would number the device, by CUDA_VISIBLE_DEVICES. (CUDA may put a faster
 * card first; cards that are alike keep NVML's order.) */
static int ordinal_of(const char *uuid, unsigned index)
{
	int ordinal = 0;

	if (!visible)
		return (int)index;
	for (const char *p = visible; *p; ordinal++) {
		size_t n = strcspn(p, ",");
		char *end;
		unsigned long number = strtoul(p, &end, 10);

		if ((end > p && end == p + n && number == index) ||
		    (n > 4 && (strncmp(p, "GPU-", 4) == 0 || strncmp(p, "MIG-", 4) == 0) &&
		     strncmp(p, uuid, n) == 0))
			return ordinal;
		p += n + (p[n] == ',');
	}
	return -1;
}

int vgpu_card_of_nvml(nvmlDevice_t device)
{
	unsigned index;
	char uuid[96];

	if (!vgpu_state.grant || !vgpu_real.nvmlDeviceGetUUID ||
	    vgpu_real.nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS)
		return -1;
	if (vgpu_state.from_env && !vgpu_state.grant->card[0].uuid[0] &&
	    vgpu_real.nvmlDeviceGetIndex &&
	    vgpu_real.nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS) {
		int card = ordinal_of(uuid, index);

		return card < (int)vgpu_state.ncards ? card : -1;
	}
	return card_of_uuid(uuid);
}
#endif
