// SPDX-License-Identifier: Apache-2.0
/*
 * export.c - memory that several processes have, as seen with driver 580 on an H100.
 *
 * The card counts an export for its first process. When that process frees it or ends, the card
 * counts it for another process that has imported it, mapped or not. A descriptor alone keeps it,
 * too, and then it counts for no process. As with /dev/nvidiactl, all descriptors are open files of
 * the same inode, and can be polled: they are open files of a FIFO. Each has a lock on one byte. The
 * number of the byte is the number of the export. The lock belongs to the open file, so it shows
 * that a descriptor is open in any process. A dma-buf can be of several exports, and nothing imports
 * it: its locks are on the bytes RANGE later.
 */
#define _GNU_SOURCE
#include "model.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "nvidiactl"
#define RANGE (1ull << 61)

static bool path_beside(const char *state, char path[PATH_MAX])
{
	const char *slash = strrchr(state, '/');
	int n = slash ? (int)(slash - state) : 1;

	return snprintf(path, PATH_MAX, "%.*s/" DEVICE, n, slash ? state : ".") < PATH_MAX;
}

void sim_export_create(const char *state)
{
	char path[PATH_MAX];

	if (path_beside(state, path) && mkfifo(path, 0666) == 0)
		(void)!chmod(path, 0666); /* whatever the umask is */
}

static int open_device(const struct sim_state *st)
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

static struct flock byte_of(uint64_t key)
{
	return (struct flock){.l_type = F_RDLCK,
			      .l_whence = SEEK_SET,
			      .l_start = (off_t)(key % INT64_MAX),
			      .l_len = 1};
}

int sim_export_open(const struct sim_state *st, uint64_t key)
{
	struct flock byte = byte_of(key);
	int fd = open_device(st);

	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &byte) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

bool sim_export_has_range(int fd, uint64_t key)
{
	struct flock byte = byte_of(key + RANGE);

	return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

uint64_t sim_export_named(int fd)
{
	char path[64], line[256];
	uint64_t key = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "re");
	while (f && !key && fgets(line, sizeof(line), f))
		if (strstr(line, "OFDLCK"))
			key = strtoull(strrchr(line, ' '), NULL, 10);
	if (f)
		fclose(f);
	return key;
}

static struct sim_export *find(struct sim_state *st, uint64_t key)
{
	for (uint32_t i = 0; i < SIM_MAX_EXPORTS; i++)
		if (st->export[i].key == key)
			return &st->export[i];
	return NULL;
}

uint64_t sim_export_add(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes)
{
	struct sim_export *e = find(st, 0);

	if (!e)
		return 0;
	*e = (struct sim_export){.key = ++st->next_key % INT64_MAX,
				 .bytes = bytes,
				 .card = card,
				 .payer = proc,
				 .exporter = proc};
	e->holder[proc] = 1;
	return e->key;
}

static void paid_by(struct sim_state *st, struct sim_export *e, uint32_t proc)
{
	if (e->payer < SIM_MAX_PROCS)
		sim_mem_sub(st, e->payer, e->card, e->bytes);
	e->payer = proc;
	if (proc < SIM_MAX_PROCS)
		st->proc[proc].mem[e->card] += e->bytes;
}

bool sim_export_join(struct sim_state *st, uint32_t proc, uint64_t key, uint32_t *card,
		     uint64_t *bytes)
{
	struct sim_export *e = key ? find(st, key) : NULL;

	if (!e)
		return false;
	e->holder[proc] = 1;
	if (e->payer == SIM_MAX_PROCS)
		paid_by(st, e, proc);
	*card = e->card;
	*bytes = e->bytes;
	return true;
}

static void leave(struct sim_state *st, uint32_t proc, struct sim_export *e)
{
	uint32_t next = 0;

	e->holder[proc] = 0;
	if (e->payer != proc)
		return;
	while (next < SIM_MAX_PROCS && !e->holder[next])
		next++;
	paid_by(st, e, next);
}

void sim_export_leave(struct sim_state *st, uint32_t proc, uint64_t key)
{
	for (uint32_t i = 0; i < SIM_MAX_EXPORTS; i++) {
		struct sim_export *e = &st->export[i];

		if (!key && e->exporter == proc)
			e->exporter = SIM_MAX_PROCS;
		if (e->key && (!key || e->key == key) && e->holder[proc])
			leave(st, proc, e);
	}
	sim_export_reap(st);
}

static bool is_locked(int fd, uint64_t key)
{
	struct flock byte = byte_of(key);

	byte.l_type = F_WRLCK;
	return fcntl(fd, F_OFD_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

bool sim_export_is_open(const struct sim_state *st, uint64_t key)
{
	int fd = open_device(st);
	bool open = fd >= 0 && (is_locked(fd, key) || is_locked(fd, key + RANGE));

	if (fd >= 0)
		close(fd);
	return open;
}

void sim_export_reap(struct sim_state *st)
{
	for (uint32_t i = 0; i < SIM_MAX_EXPORTS; i++) {
		struct sim_export *e = &st->export[i];

		if (e->key && e->payer == SIM_MAX_PROCS && !sim_export_is_open(st, e->key))
			e->key = 0;
	}
}

/* The card frees an export without a process when its last descriptor is closed. */
static uint64_t unpaid(const struct sim_state *st, uint32_t card, bool orphaned)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < SIM_MAX_EXPORTS; i++) {
		const struct sim_export *e = &st->export[i];

		if (e->key && e->payer == SIM_MAX_PROCS && e->card == card &&
		    (!orphaned || e->exporter == SIM_MAX_PROCS) && sim_export_is_open(st, e->key))
			sum += e->bytes;
	}
	return sum;
}

uint64_t sim_export_unpaid(const struct sim_state *st, uint32_t card)
{
	return unpaid(st, card, false);
}

uint64_t sim_export_orphaned(const struct sim_state *st, uint32_t card)
{
	return unpaid(st, card, true);
}
