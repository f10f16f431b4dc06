/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - see job.h. Reads /run/vgpu/self first: inside a job's mount namespace it is the grant
 * that gresd wrote, and nothing in the environment can change it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/log.h"
#include "env.h"
#include "job.h"

#define SELF_GRANT "/run/vgpu/self/grant"
#define SELF_CACHE "/run/vgpu/self/cache"

struct vgpu_state vgpu_state;
static VGPU_PRIVATE pthread_mutex_t claim_lock =
	PTHREAD_MUTEX_INITIALIZER; /* of a forked child's claim */

/* The process has a job, and its grant or cache cannot be used: it must not be taken for
 * one without limits, nor have a whole limit for itself. See refuse_all(). */
static struct {
	const char *what, *path, *want;
	char why[96];
} trouble;

#define WANT_ROOM "room for a few files before the first CUDA call, see ulimit -n"
#define WANT_SPACE "address space before the first CUDA call, see ulimit -v"
#define WANT_OURS "gresd's own file, read as the job's user by the libvgpu.so of this node"

/* error: an errno; 0: as why says. */
static void refuse(const char *what, const char *path, int error, const char *why)
{
	trouble.what = what;
	trouble.path = path;
	trouble.want = error == EMFILE || error == ENFILE ? WANT_ROOM
		       : error == ENOMEM                  ? WANT_SPACE
							  : WANT_OURS;
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
	int r = ftruncate(fd, (off_t)VGPU_CACHE_SIZE);
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
	STORE(&vgpu_state.slot->heartbeat_ns, vgpu_now());
}

/* A forked child that has not asked for CUDA since; see vgpu_job_claim(). */
static bool unclaimed;
static struct vgpu_slot child_slot;

void vgpu_job_in_child(void)
{
	vgpu_state.other_cards = 0;
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
	vgpu_state.from_env = false;
}

/* Paths in the environment are the user's. A set-user-id program, which the preload
 * list reaches, would make and stretch files there with the rights of another. */
static void find(void)
{
	const char *grant = secure_getenv("VGPU_GRANT"), *cache = secure_getenv("VGPU_CACHE");

	vgpu_state.grant = map_grant(SELF_GRANT);
	if (vgpu_state.grant)
		cache = SELF_CACHE;
	else if (!trouble.what && grant && *grant)
		vgpu_state.grant = map_grant(grant);
	if (!trouble.what && !vgpu_state.grant && vgpu_grant_from_env(&vgpu_env_grant)) {
		vgpu_state.grant = &vgpu_env_grant;
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

bool vgpu_job_find(void)
{
	find();
	return !trouble.what;
}

void vgpu_job_claim(void)
{
	VGPU_LOCK(&claim_lock);

	if (unclaimed)
		claim_slot();
	unclaimed = false;
}

uint64_t vgpu_limit(int card)
{
	return vgpu_state.grant->card[card].mem_limit;
}

uint64_t vgpu_mem_used(int card)
{
	return vgpu_mem_with(vgpu_mem_sum(&vgpu_state.cache, (unsigned)card),
			     vgpu_mem_outside(card));
}
