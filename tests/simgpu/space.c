// SPDX-License-Identifier: Apache-2.0
/*
 * space.c - the address spaces of clients of an MPS server. One belongs to an open file, nvidia-uvm
 * beside the file of the machine, and is there while that has a descriptor in any process: a lock
 * on a byte of it, which belongs to the open file, too, shows that. A kernel of a client that has
 * ended goes on while its address space is there; else it reads what is not there, and all
 * clients of its server get an error.
 */
#define _GNU_SOURCE
#include "model.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DEVICE "nvidia-uvm"

static bool path_beside(const char *state, char path[PATH_MAX])
{
	const char *slash = strrchr(state, '/');
	int n = slash ? (int)(slash - state) : 1;

	return snprintf(path, PATH_MAX, "%.*s/" DEVICE, n, slash ? state : ".") < PATH_MAX;
}

static int device_of(const struct sim_state *st)
{
	char link[32], state[PATH_MAX], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", sim_descriptor(st));
	n = readlink(link, state, sizeof(state) - 1);
	if (n < 0)
		return -1;
	state[n] = 0;
	return path_beside(state, path) ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static struct flock byte_of(uint64_t space)
{
	return (struct flock){.l_type = F_WRLCK,
			      .l_whence = SEEK_SET,
			      .l_start = (off_t)(space % INT64_MAX),
			      .l_len = 1};
}

/* A character device, as the driver's: of /dev/null. Only root can make one; without, no client's
 * death is a fault. */
void sim_space_create(const char *state)
{
	char path[PATH_MAX];
	struct stat sb;

	if (!path_beside(state, path) || (stat(path, &sb) == 0 && S_ISCHR(sb.st_mode)))
		return;
	unlink(path);
	if (mknod(path, S_IFCHR | 0666, makedev(1, 3)) == 0)
		(void)!chmod(path, 0666); /* whatever the umask is */
}

void sim_space_open(struct sim_state *st, uint32_t proc)
{
	uint64_t space = ++st->next_key;
	struct flock byte = byte_of(space);
	int fd = device_of(st); /* stays open, as the driver's does */

	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &byte) == 0)
		st->proc[proc].space = space;
}

static bool is_there(const struct sim_state *st, uint64_t space)
{
	struct flock byte = byte_of(space);
	int fd = device_of(st), rc;

	if (fd < 0)
		return false;
	rc = fcntl(fd, F_OFD_GETLK, &byte);
	close(fd);
	return rc == 0 && byte.l_type != F_UNLCK;
}

/* A kernel that the process has on the card, or that would come there by itself. */
static bool has_kernel(struct sim_state *st, uint32_t proc)
{
	for (uint32_t i = 0; i < SIM_MAX_CTX; i++) {
		const struct sim_ctx *x = &st->ctx[i];

		if (!x->used || x->proc != proc || !x->server)
			continue;
		for (uint32_t s = x->streams; s; s = st->stream[s - 1].next) {
			const struct sim_stream *q = &st->stream[s - 1];

			if (q->done < q->tail && sim_op_at(st, s - 1, q->done)->kind == SIM_KERNEL)
				return true;
		}
	}
	return false;
}

bool sim_space_works(struct sim_state *st, uint32_t proc)
{
	if (!st->proc[proc].space || !has_kernel(st, proc))
		return false;
	if (is_there(st, st->proc[proc].space))
		return true;
	for (uint32_t i = 0; i < SIM_MAX_CTX; i++)
		for (uint32_t k = 0; st->ctx[i].used && st->ctx[i].server && k < SIM_MAX_CTX; k++)
			if (st->ctx[k].used && st->ctx[k].proc == proc && sim_together(st, i, k))
				__atomic_store_n(&st->ctx[i].faulted, 1, __ATOMIC_RELAXED);
	return false;
}
