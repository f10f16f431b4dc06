/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared.c - memory that a file descriptor keeps alive. A process may
 * export an allocation as a descriptor and release the allocation: the card then
 * counts the memory for no process until somebody maps it (measured: H200, driver
 * 580). So the exporter goes on paying while its descriptor is open. Once another
 * process maps the memory, the card counts it there, and the comparison with the
 * card's count charges it.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../driver/prototypes.h"
#include "../driver/real.h"
#include "../job/job.h"
#include "account.h"
#include "shared.h"

#define MAX_KEPT 4096

/* A descriptor, as it was when it was handed out: its number may be used again. */
struct descriptor {
	int fd;
	dev_t dev, rdev;
	ino_t ino;
};

/* Exported memory; after its release, with the bytes that still count. */
struct exported {
	uint64_t handle; /* 0: free entry, or released; then: */
	uint64_t piece;  /* number of the memory, of which one entry has the bytes */
	struct descriptor at;
	uint64_t bytes;
	int card;
	bool used;
};

static struct exported exported[MAX_KEPT];
static unsigned top;      /* entries that may be used */
static unsigned released; /* entries with bytes */
static pthread_mutex_t exported_lock = PTHREAD_MUTEX_INITIALIZER;

static bool describe(int fd, struct descriptor *d)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		return false;
	*d = (struct descriptor){.fd = fd, .dev = st.st_dev, .rdev = st.st_rdev, .ino = st.st_ino};
	return true;
}

/* What cannot be looked at is open. */
static bool still_open(const struct descriptor *d)
{
	struct descriptor now;

	if (!describe(d->fd, &now))
		return errno != EBADF;
	return now.dev == d->dev && now.rdev == d->rdev && now.ino == d->ino;
}

static void forget(struct exported *e)
{
	struct exported was = *e;
	unsigned i = 0;

	*e = (struct exported){0};
	if (!was.bytes)
		return;
	/* Exported twice, it is there until both are closed. */
	while (i < top && (exported[i].piece != was.piece || !still_open(&exported[i].at)))
		i++;
	if (i < top) {
		exported[i].bytes = was.bytes;
		exported[i].card = was.card;
		return;
	}
	vgpu_release(was.card, was.bytes);
	released--;
}

void vgpu_shared_closed(int fd)
{
	pthread_mutex_lock(&exported_lock);
	for (unsigned i = 0; i < top; i++)
		if (exported[i].used && (exported[i].at.fd == fd || !still_open(&exported[i].at)))
			forget(&exported[i]);
	while (top && !exported[top - 1].used)
		__atomic_store_n(&top, top - 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&exported_lock);
}

bool vgpu_shared_note(uint64_t handle, int fd)
{
	struct exported e = {.handle = handle, .used = true};
	unsigned at = 0;

	if (!describe(fd, &e.at))
		return false;
	pthread_mutex_lock(&exported_lock);
	while (at < top && exported[at].used)
		at++;
	if (at < MAX_KEPT) {
		exported[at] = e;
		if (at == top)
			__atomic_store_n(&top, top + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&exported_lock);
	return at < MAX_KEPT;
}

bool vgpu_shared_range(const struct vgpu_item *item, uint64_t range)
{
	const struct vgpu_range *r = (const struct vgpu_range *)(uintptr_t)range;

	return item->key < r->end && item->key + item->size > r->begin &&
	       !vgpu_shared_note(r->mapped ? item->other : item->key, r->fd);
}

static CUresult exports(CUresult r, int type, uint64_t handle, const int *fd)
{
	if (r != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !vgpu_state.grant)
		return r;
	vgpu_shared_closed(*fd);
	if (vgpu_shared_note(handle, *fd))
		return r;
	close(*fd);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_shared_freed(uint64_t handle, int card, uint64_t bytes)
{
	static uint64_t pieces;
	bool kept = false;

	if (!__atomic_load_n(&top, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&exported_lock);
	pieces++;
	for (unsigned i = 0; i < top; i++) {
		struct exported *e = &exported[i];

		if (!e->used || e->handle != handle)
			continue;
		if (!still_open(&e->at)) {
			*e = (struct exported){0};
			continue;
		}
		e->handle = 0;
		e->piece = pieces;
		if (kept)
			continue;
		kept = true;
		vgpu_charge_forced(card, bytes);
		e->bytes = bytes;
		e->card = card;
		released++;
	}
	pthread_mutex_unlock(&exported_lock);
}

void vgpu_shared_release(uint64_t handle, int card, uint64_t bytes)
{
	vgpu_shared_freed(handle, card, bytes);
	vgpu_release(card, bytes);
}

void vgpu_shared_settle(void)
{
	if (__atomic_load_n(&released, __ATOMIC_RELAXED))
		vgpu_shared_closed(-1);
}

void vgpu_shared_in_child(void)
{
	/* What the parent holds, the parent pays. */
	pthread_mutex_init(&exported_lock, NULL);
	for (unsigned i = 0; i < top; i++)
		exported[i] = (struct exported){0};
	top = released = 0;
}

/* Only descriptors: other kinds of handles are for other systems, or name memory
 * that lives in a process. */
#define EXPORT(name, handle_type)                                                       \
	CUresult name(void *to, handle_type handle, int type, unsigned long long flags) \
	{                                                                               \
		CUresult r;                                                             \
                                                                                        \
		VGPU_NEED_CUDA(name);                                                   \
		r = vgpu_real.name(to, handle, type, flags);                            \
		return exports(r, type, (uint64_t)handle, to);                          \
	}
EXPORT(cuMemExportToShareableHandle, CUmemGenericAllocationHandle)
EXPORT(cuMemPoolExportToShareableHandle, CUmemoryPool)
