/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm.c - the seam to the kernel driver's resource manager: learns this
 * process's channel groups by watching the ioctls that libcuda makes, and sets
 * their time slice. Everything else passes through unread.
 *
 * ABI, from NVIDIA's open kernel modules (nvos.h NVOS00/21/54/64_PARAMETERS,
 * nv_escape.h, cla06c.h, ctrla06c.h; unchanged from 535 to 595):
 *   ioctl type 'F'; RM_FREE 0x29, RM_CONTROL 0x2A, RM_ALLOC 0x2B
 *   KEPLER_CHANNEL_GROUP_A 0xA06C; SET_TIMESLICE 0xA06C0103, GET 0xA06C0104,
 *   one u64 of microseconds; both flagged non-privileged.
 * Seen to work: 580.159.04 (H200), as an ordinary user.
 *
 * A slice set when the group is allocated is overwritten when libcuda schedules
 * it: set slices once the context is usable.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/dl.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "rm.h"

#define RM_TYPE 'F'
#define RM_FREE 0x29
#define RM_CONTROL 0x2A
#define RM_ALLOC 0x2B
#define CLASS_CHANNEL_GROUP 0xA06Cu
#define CMD_SET_TIMESLICE 0xA06C0103u
#define CMD_GET_TIMESLICE 0xA06C0104u
#define MAX_GROUPS 512

struct rm_alloc { /* NVOS64, and its older, shorter form NVOS21 */
	uint32_t root, parent, object, cls;
	uint64_t params;
	union {
		struct {
			uint64_t rights;
			uint32_t params_size, flags, status, pad;
		} v64;
		struct {
			uint32_t params_size, status;
		} v21;
	};
};
struct rm_control { /* NVOS54 */
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};
struct rm_free { /* NVOS00 */
	uint32_t root, parent, object, status;
};
_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64_PARAMETERS");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54_PARAMETERS");
_Static_assert(sizeof(struct rm_free) == 16, "NVOS00_PARAMETERS");
#define ALLOC_V21_SIZE 32

struct group {
	int fd, card;
	uint32_t client, parent, object;
	uint64_t own_us; /* the driver's own slice, read before the first set; 0: not read */
	uint64_t set_us; /* last set; 0: none of ours was read back yet */
};

static struct group groups[MAX_GROUPS];
static unsigned ngroups;
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int creating = -1;
static int (*real_ioctl)(int fd, unsigned long req, ...);

int ioctl(int fd, unsigned long req, ...);

void vgpu_rm_creating(int card)
{
	creating = card;
}

void vgpu_rm_forget(void)
{
	/* In a forked child the lock may have been held by a thread that is gone. */
	pthread_mutex_init(&groups_lock, NULL);
	ngroups = 0;
}

static int call(int fd, unsigned long req, void *arg)
{
	int (*t)(int, unsigned long, void *) = __atomic_load_n(&vgpu_transport, __ATOMIC_ACQUIRE);

	/* Set by the first ioctl. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
	return t ? t(fd, req, arg) : real_ioctl(fd, req, arg);
}

static void learn(int fd, size_t size, const struct rm_alloc *a)
{
	uint32_t status = size == sizeof *a ? a->v64.status : a->v21.status;
	struct group *g;

	if (status != 0 || a->cls != CLASS_CHANNEL_GROUP)
		return;
	pthread_mutex_lock(&groups_lock);
	if (ngroups < MAX_GROUPS) {
		g = &groups[ngroups++];
		*g = (struct group){.fd = fd,
				    .card = creating,
				    .client = a->root,
				    .parent = a->parent,
				    .object = a->object};
		/* Made outside a context's creation: of the same device as its
		 * siblings. */
		for (unsigned i = 0; g->card < 0 && i + 1 < ngroups; i++)
			if (groups[i].client == g->client && groups[i].parent == g->parent)
				g->card = groups[i].card;
	}
	pthread_mutex_unlock(&groups_lock);
}

static void unlearn(const struct rm_free *f)
{
	unsigned kept = 0;

	if (f->status != 0)
		return;
	pthread_mutex_lock(&groups_lock);
	for (unsigned i = 0; i < ngroups; i++) {
		const struct group *g = &groups[i];

		/* Freeing a client or a device frees what is below it. */
		if (f->object == g->client ||
		    (f->root == g->client && (f->object == g->object || f->object == g->parent)))
			continue;
		groups[kept++] = *g;
	}
	ngroups = kept;
	pthread_mutex_unlock(&groups_lock);
}

static __attribute__((noinline)) int rm_ioctl(int fd, unsigned long req, void *arg)
{
	unsigned nr = _IOC_NR(req);
	size_t size = _IOC_SIZE(req);
	int r = call(fd, req, arg), saved = errno;

	if (r == 0 && arg && vgpu_state.grant) {
		if (nr == RM_ALLOC && (size == sizeof(struct rm_alloc) || size == ALLOC_V21_SIZE))
			learn(fd, size, arg);
		else if (nr == RM_FREE && size == sizeof(struct rm_free))
			unlearn(arg);
	}
	errno = saved;
	return r;
}

VGPU_EXPORT int ioctl(int fd, unsigned long req, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, req);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (unlikely(!real_ioctl)) {
		if (!vgpu_real_dlsym)
			vgpu_need_dlsym();
		if (!vgpu_real_dlsym) /* no libdl (old_glibc.h): no driver either */
			return (int)syscall(SYS_ioctl, fd, req, arg);
		real_ioctl = (int (*)(int, unsigned long, ...))vgpu_real_dlsym(RTLD_NEXT, "ioctl");
	}
	if (likely(_IOC_TYPE(req) != RM_TYPE))
		return real_ioctl(fd, req, arg);
	return rm_ioctl(fd, req, arg);
}

static int control(const struct group *g, uint32_t cmd, uint64_t *us)
{
	struct rm_control c = {.client = g->client,
			       .object = g->object,
			       .cmd = cmd,
			       .params = (uint64_t)(uintptr_t)us,
			       .params_size = sizeof *us,
			       .status = 0xffff};

	return call(g->fd, _IOWR(RM_TYPE, RM_CONTROL, struct rm_control), &c) == 0 && c.status == 0
		       ? 0
		       : -EPERM;
}

/* Each control waits for, and then holds up, whoever else on the node wants the
 * resource manager's lock (docs/adr/0011): one call, where the driver has once been
 * seen to obey and nobody asks to look again. */
static int set_group(struct group *g, uint32_t slice_us, bool verify)
{
	uint64_t now = 0, want = slice_us ? slice_us : g->own_us, back = 0;

	if (g->set_us != 0 && !verify) {
		if (g->set_us == want)
			return 0;
		g->set_us = 0; /* unless it goes well */
		if (control(g, CMD_SET_TIMESLICE, &want))
			return -EPERM;
		g->set_us = want;
		return 0;
	}
	g->set_us = 0;
	if (control(g, CMD_GET_TIMESLICE, &now))
		return -EPERM;
	if (g->own_us == 0)
		g->own_us = now;
	if (want == 0)
		want = g->own_us;
	if (now != want && (control(g, CMD_SET_TIMESLICE, &want) ||
			    control(g, CMD_GET_TIMESLICE, &back) || back != want))
		return -EPERM;
	g->set_us = want;
	return 0;
}

int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify)
{
	int r = -ENOENT, saved = errno;

	if (!real_ioctl && !vgpu_transport)
		return r;
	/* Held across the controls, which do not come back into this library. */
	pthread_mutex_lock(&groups_lock);
	for (unsigned i = 0; i < ngroups; i++) {
		int one;

		/* A group of no known card follows the only card of the job. */
		if (groups[i].card != card && !(groups[i].card < 0 && vgpu_state.ncards == 1))
			continue;
		one = set_group(&groups[i], slice_us, verify);
		if (r != -EPERM)
			r = one;
	}
	pthread_mutex_unlock(&groups_lock);
	errno = saved;
	return r;
}
