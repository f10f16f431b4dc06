/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.c - the channel groups of this process, and their time slices.
 *
 * A slice set when the group is allocated is overwritten when libcuda schedules
 * it: set slices once the context is usable.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "../driver/real.h"
#include "../job/job.h"
#include "kernel.h"

#define MAX_GROUPS 512

struct group {
	int fd, card;
	uint32_t client, parent, object;
	bool cuda;       /* as its client */
	uint64_t own_us; /* the driver's own slice, read before the first set; 0: not read */
	uint64_t set_us; /* last set; 0: none of ours was read back yet */
};

static struct group groups[MAX_GROUPS];
static VGPU_PRIVATE unsigned ngroups;
static VGPU_PRIVATE bool missed; /* there are more groups than are known */
static VGPU_PRIVATE bool had_some[VGPU_MAX_CARDS];
static bool grown;
static VGPU_PRIVATE pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int creating = -1;

void vgpu_rm_creating(int card)
{
	creating = card;
}

bool vgpu_rm_creates(void)
{
	return creating >= 0;
}

bool vgpu_rm_grown(void)
{
	return __atomic_load_n(&grown, __ATOMIC_RELAXED) &&
	       __atomic_exchange_n(&grown, false, __ATOMIC_ACQUIRE);
}

bool vgpu_rm_group_made(int fd, uint32_t client, uint32_t parent, uint32_t object)
{
	struct group new = {fd, creating, client, parent, object, creating >= 0, 0, 0};
	unsigned at;

	/* Made outside a context's creation: of the same device as its siblings. */
	if (creating >= 0)
		vgpu_device_is(client, parent, creating);
	else
		new.card = vgpu_card_below(client, parent);
	VGPU_LOCK(&groups_lock);
	at = ngroups;
	for (unsigned i = 0; i < ngroups; i++) {
		const struct group *g = &groups[i];

		if (g->client != client)
			continue;
		if (g->object == object) { /* one of that name is gone, with its descriptor */
			at = i;
			continue;
		}
		new.cuda |= g->cuda;
		if (new.card < 0 && g->parent == parent)
			new.card = g->card;
	}
	if (at < MAX_GROUPS)
		groups[at] = new;
	else
		missed = true;
	ngroups += at == ngroups && at < MAX_GROUPS;
	/* By a stream, by a process that cuda-checkpoint brings back, or by another API. */
	if (creating < 0)
		__atomic_store_n(&grown, true, __ATOMIC_RELEASE);
	return new.cuda;
}

void vgpu_rm_freed(uint32_t client, uint32_t object)
{
	VGPU_LOCK(&groups_lock);
	unsigned kept = 0;

	for (unsigned i = 0; i < ngroups; i++) {
		const struct group *g = &groups[i];

		/* Freeing a client or a device frees what is below it. */
		if (object == g->client ||
		    (client == g->client && (object == g->object || object == g->parent)))
			continue;
		groups[kept++] = *g;
	}
	ngroups = kept;
}

static int control(const struct group *g, uint32_t cmd, uint64_t *us)
{
	switch (vgpu_rm_control(g->fd, g->client, g->object, cmd, us, sizeof *us)) {
	case 0:
		return 0;
	/* A process that is suspended has closed what its groups belonged to, and freed none. */
	case -EBADF:
	case -ENOTTY:
	case STATUS_INVALID_CLIENT:
	case STATUS_INVALID_OBJECT_HANDLE:
	case STATUS_OBJECT_NOT_FOUND:
		return -ENOENT;
	default:
		return -EPERM;
	}
}

/* Each control takes a lock of the resource manager that delays all processes of the node
 * (docs/adr/0011). So there is only one call if the driver has obeyed before and verify is false. */
static int set_group(struct group *g, uint32_t slice_us, bool verify)
{
	bool obeys = g->set_us && !verify;
	uint64_t now = g->set_us, want;
	int r = obeys ? 0 : control(g, CMD_GET_TIMESLICE, &now);

	g->set_us = 0; /* unless it goes well */
	if (r)
		return r;
	if (!obeys && !g->own_us)
		g->own_us = now;
	want = slice_us ? slice_us : g->own_us;
	if (now != want) {
		r = control(g, CMD_SET_TIMESLICE, &want);
		if (!r && !obeys)
			r = control(g, CMD_GET_TIMESLICE, &now);
		if (!r && !obeys && now != want)
			r = -EPERM;
	}
	g->set_us = r ? 0 : want;
	return r;
}

int vgpu_rm_set_slices(int card, uint32_t slice_us, bool verify)
{
	int r = -ENOENT, saved = errno;
	unsigned kept = 0;

	if (!vgpu_real_ioctl && !vgpu_transport)
		return r;
	/* Held across the controls, which do not come back into this library. */
	VGPU_LOCK(&groups_lock);
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
	errno = saved;
	return r;
}
