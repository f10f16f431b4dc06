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

#define MAX_KEPT 256

/* A descriptor, as it was when it was handed out: its number may be used again. */
struct descriptor {
	int fd;
	dev_t dev, rdev;
	ino_t ino;
};

/* An exported allocation or pool; after its release, with the bytes that still count. */
struct exported {
	uint64_t handle; /* 0: free entry, or released */
	struct descriptor at;
	uint64_t bytes;
	int card;
	bool used;
};

static struct exported exported[MAX_KEPT];
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
	if (e->bytes) {
		vgpu_release(e->card, e->bytes);
		released--;
	}
	*e = (struct exported){0};
}

bool vgpu_shared_note(uint64_t handle, int fd, bool alone)
{
	struct exported e = {.handle = handle, .used = true};
	struct exported *to = NULL;

	if (!describe(fd, &e.at))
		return false;
	pthread_mutex_lock(&exported_lock);
	/* The number is given out again: what had it before is closed. */
	for (int i = 0; i < MAX_KEPT && alone; i++)
		if (exported[i].used && exported[i].at.fd == fd)
			forget(&exported[i]);
	for (int i = 0; i < MAX_KEPT && !to; i++) {
		/* An entry whose descriptor is closed keeps nothing alive. */
		if (!exported[i].used || (!exported[i].bytes && !still_open(&exported[i].at)))
			to = &exported[i];
	}
	if (to)
		*to = e;
	pthread_mutex_unlock(&exported_lock);
	return to;
}

static CUresult exports(CUresult r, int type, uint64_t handle, const int *fd)
{
	if (r != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !vgpu_state.grant || vgpu_shared_note(handle, *fd, true))
		return r;
	close(*fd);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void vgpu_shared_release(uint64_t handle, int card, uint64_t bytes)
{
	struct exported *kept = NULL;

	pthread_mutex_lock(&exported_lock);
	for (int i = 0; i < MAX_KEPT; i++) {
		struct exported *e = &exported[i];

		if (!e->used || e->handle != handle)
			continue;
		/* Exported twice, it is one piece of memory: one entry pays. */
		e->handle = 0;
		if (!kept && still_open(&e->at)) {
			kept = e;
			e->bytes = bytes;
			e->card = card;
			released++;
		} else {
			e->used = false;
		}
	}
	pthread_mutex_unlock(&exported_lock);
	if (!kept)
		vgpu_release(card, bytes);
}

void vgpu_shared_settle(void)
{
	if (!__atomic_load_n(&released, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&exported_lock);
	for (int i = 0; i < MAX_KEPT; i++) {
		struct exported *e = &exported[i];

		if (e->bytes && !still_open(&e->at))
			forget(e);
	}
	pthread_mutex_unlock(&exported_lock);
}

void vgpu_shared_in_child(void)
{
	/* What the parent holds, the parent pays. */
	pthread_mutex_init(&exported_lock, NULL);
	for (int i = 0; i < MAX_KEPT; i++)
		exported[i] = (struct exported){0};
	released = 0;
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
