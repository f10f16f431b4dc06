/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm.c - the seam to the kernel driver's resource manager: learns this
 * process's channel groups by watching the ioctls that libcuda makes, and sets
 * their time slice. Everything else passes through unread.
 *
 * ABI, from NVIDIA's open kernel modules (nvos.h NVOS00/21/54/64_PARAMETERS,
 * nv_escape.h, cla06c.h, ctrla06c.h; unchanged from 535 to 595):
 *   ioctl type 'F'; RM_FREE 0x29, RM_CONTROL 0x2A, RM_ALLOC 0x2B
 *   NV01_DEVICE_0 0x80, whose parameters begin with the number of the device;
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
#include <sys/uio.h>
#include <unistd.h>

#include "../base/dl.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "rm.h"

#define RM_TYPE 'F'
#define RM_FREE 0x29
#define RM_CONTROL 0x2A
#define RM_ALLOC 0x2B
#define CLASS_DEVICE 0x80u
#define CLASS_CHANNEL_GROUP 0xA06Cu
#define CMD_SET_TIMESLICE 0xA06C0103u
#define CMD_GET_TIMESLICE 0xA06C0104u
#define MAX_GROUPS 512
#define MAX_DEVICES 32
/* What it answers about an object that it does not have (nvstatuscodes.h). */
#define STATUS_INVALID_CLIENT 0x23
#define STATUS_INVALID_OBJECT_HANDLE 0x33
#define STATUS_OBJECT_NOT_FOUND 0x57

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
/* Which card a device is, is known once a context on it was made; its object is another one
 * when the process was suspended meanwhile. */
static struct device {
	uint32_t client, object;
	int card; /* -1: not known */
} devices[MAX_DEVICES];
static bool missed; /* there are more groups than are known */
static bool had_some[VGPU_MAX_CARDS];
static bool grown;
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
	missed = false;
	memset(had_some, 0, sizeof had_some);
	memset(devices, 0, sizeof devices);
}

bool vgpu_rm_grown(void)
{
	return __atomic_load_n(&grown, __ATOMIC_RELAXED) &&
	       __atomic_exchange_n(&grown, false, __ATOMIC_ACQUIRE);
}

static int call(int fd, unsigned long req, void *arg)
{
	int (*t)(int, unsigned long, void *) = __atomic_load_n(&vgpu_transport, __ATOMIC_ACQUIRE);

	/* Set by the first ioctl. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
	return t ? t(fd, req, arg) : real_ioctl(fd, req, arg);
}

/* Its parameters are the program's memory, which the kernel has read, and a thread of it may
 * have given back since. */
static void learn_device(const struct rm_alloc *a)
{
	uint32_t number = MAX_DEVICES;
	struct iovec to = {&number, sizeof number};
	struct iovec from = {(void *)(uintptr_t)a->params, sizeof number};
	long n = syscall(SYS_process_vm_readv, (long)getpid(), &to, 1UL, &from, 1UL, 0UL);

	if (n != (long)sizeof number || number >= MAX_DEVICES)
		return;
	pthread_mutex_lock(&groups_lock);
	if (!devices[number].object)
		devices[number].card = -1;
	devices[number].client = a->root;
	devices[number].object = a->object;
	pthread_mutex_unlock(&groups_lock);
}

static struct device *device_of(const struct group *g)
{
	for (unsigned i = 0; i < MAX_DEVICES; i++)
		if (devices[i].client == g->client && devices[i].object == g->parent)
			return &devices[i];
	return NULL;
}

static void learn_group(int fd, const struct rm_alloc *a)
{
	struct device *d;
	struct group *g;
	unsigned at = 0;

	pthread_mutex_lock(&groups_lock);
	/* One of that name is gone, with its descriptor. */
	while (at < ngroups && (groups[at].client != a->root || groups[at].object != a->object))
		at++;
	if (at < MAX_GROUPS) {
		g = &groups[at];
		ngroups += at == ngroups;
		*g = (struct group){.fd = fd,
				    .card = creating,
				    .client = a->root,
				    .parent = a->parent,
				    .object = a->object};
		d = device_of(g);
		if (d && creating >= 0)
			d->card = creating;
		/* Made outside a context's creation: of the same device as its
		 * siblings. */
		if (d && g->card < 0)
			g->card = d->card;
		for (unsigned i = 0; g->card < 0 && i < ngroups; i++)
			if (groups[i].client == g->client && groups[i].parent == g->parent)
				g->card = groups[i].card;
	} else {
		missed = true;
	}
	pthread_mutex_unlock(&groups_lock);
	/* By a stream, or by a process that cuda-checkpoint brings back. */
	if (creating < 0)
		__atomic_store_n(&grown, true, __ATOMIC_RELEASE);
}

static void learn(int fd, size_t size, const struct rm_alloc *a)
{
	uint32_t status = size == sizeof *a ? a->v64.status : a->v21.status;

	if (status == 0 && a->cls == CLASS_DEVICE)
		learn_device(a);
	if (status == 0 && a->cls == CLASS_CHANNEL_GROUP)
		learn_group(fd, a);
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

	/* A process that is suspended has closed what its groups belonged to, and freed none. */
	if (call(g->fd, _IOWR(RM_TYPE, RM_CONTROL, struct rm_control), &c) != 0)
		return errno == EBADF || errno == ENOTTY ? -ENOENT : -EPERM;
	switch (c.status) {
	case 0:
		return 0;
	case STATUS_INVALID_CLIENT:
	case STATUS_INVALID_OBJECT_HANDLE:
	case STATUS_OBJECT_NOT_FOUND:
		return -ENOENT;
	default:
		return -EPERM;
	}
}

/* Each control waits for, and then holds up, whoever else on the node wants the
 * resource manager's lock (docs/adr/0011): one call, where the driver has once been
 * seen to obey and nobody asks to look again. */
static int set_group(struct group *g, uint32_t slice_us, bool verify)
{
	uint64_t now = 0, want = slice_us ? slice_us : g->own_us;
	int r;

	if (g->set_us != 0 && !verify) {
		if (g->set_us == want)
			return 0;
		g->set_us = 0; /* unless it goes well */
		r = control(g, CMD_SET_TIMESLICE, &want);
		g->set_us = r ? 0 : want;
		return r;
	}
	g->set_us = 0;
	r = control(g, CMD_GET_TIMESLICE, &now);
	if (r)
		return r;
	if (g->own_us == 0)
		g->own_us = now;
	if (want == 0)
		want = g->own_us;
	if (now != want) {
		r = control(g, CMD_SET_TIMESLICE, &want);
		if (!r)
			r = control(g, CMD_GET_TIMESLICE, &now);
		if (!r && now != want)
			r = -EPERM;
	}
	g->set_us = r ? 0 : want;
	return r;
}

int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify)
{
	int r = -ENOENT, saved = errno;
	unsigned kept = 0;

	if (!real_ioctl && !vgpu_transport)
		return r;
	/* Held across the controls, which do not come back into this library. */
	pthread_mutex_lock(&groups_lock);
	if (had_some[card])
		r = -ESRCH;
	for (unsigned i = 0; i < ngroups; i++) {
		struct group g = groups[i];
		int one = 0;

		/* A group of no known card follows the only card of the job. */
		if (g.card == card || (g.card < 0 && vgpu_state.ncards == 1)) {
			had_some[card] = true;
			one = set_group(&g, slice_us, verify);
			if (one != -ENOENT && r != -EPERM)
				r = one;
			else if (one == -ENOENT && r == -ENOENT)
				r = -ESRCH;
		}
		if (one != -ENOENT)
			groups[kept++] = g;
	}
	ngroups = kept;
	if (missed)
		r = -EPERM;
	pthread_mutex_unlock(&groups_lock);
	errno = saved;
	return r;
}
