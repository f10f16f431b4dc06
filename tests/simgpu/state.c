// SPDX-License-Identifier: Apache-2.0
/* state.c - the shared file of the simulated machine: open, lock, reap, memory. */
#define _GNU_SOURCE
#include "model.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REAP_EVERY_NS 20000000ull

/* Stay open for the life of the process: closing any descriptor of a file would drop the
 * byte lock that says this process is alive. A test may look at several machines at a time. */
#define MAX_OPEN 4096
static struct {
	const struct sim_state *st;
	int fd;
} opened[MAX_OPEN];
static unsigned nopened;

uint64_t sim_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static int init_lock(pthread_mutex_t *m)
{
	pthread_mutexattr_t a;
	int rc = pthread_mutexattr_init(&a);

	if (rc)
		return -rc;
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	rc = pthread_mutex_init(m, &a);
	pthread_mutexattr_destroy(&a);
	return -rc;
}

static void fill_state(struct sim_state *st, const struct sim_card_config *cards, uint32_t n)
{
	uint64_t now = sim_now();
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	st->since_1970 = (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec - now;
	/* The first switches must not wait for room in the file. */
	memset(st->record, 0, n * sizeof(st->record[0]));
	st->size = sizeof(*st);
	st->version = SIM_VERSION;
	st->ncards = n;
	st->next_key = now;
	for (uint32_t i = 0; i < n; i++) {
		st->card[i].conf = cards[i];
		st->ngpus += !cards[i].parent;
		st->card[i].now_ns = now;
		st->card[i].sample_at_ns = now + SIM_SAMPLE_NS;
	}
	st->magic = SIM_MAGIC;
}

/* Written beside the old file and renamed over it: processes that still use
 * the old machine keep it, new ones get the new machine. */
int sim_create(const char *path, const struct sim_card_config *cards, uint32_t n)
{
	char tmp[PATH_MAX];
	struct sim_state *st;
	int fd, rc = 0;

	if (n < 1 || n > SIM_MAX_CARDS)
		return -EINVAL;
	if (snprintf(tmp, sizeof(tmp), "%s.new.%ld", path, (long)getpid()) >= (int)sizeof(tmp))
		return -ENAMETOOLONG;
	fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	/* every user of the machine maps it read-write, as /dev/nvidia0 is 0666 */
	if (fchmod(fd, 0666) || ftruncate(fd, sizeof(*st))) {
		rc = -errno;
		goto out;
	}
	st = mmap(NULL, sizeof(*st), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (st == MAP_FAILED) {
		rc = -errno;
		goto out;
	}
	rc = init_lock(&st->lock);
	fill_state(st, cards, n);
	munmap(st, sizeof(*st));
	if (!rc && rename(tmp, path))
		rc = -errno;
	if (!rc) {
		sim_space_create(path);
		sim_export_create(path);
	}
out:
	close(fd);
	if (rc)
		unlink(tmp);
	return rc;
}

struct sim_state *sim_open(const char *path)
{
	struct sim_state *st;
	struct stat sb;
	unsigned at;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	if (fstat(fd, &sb) || (uint64_t)sb.st_size != sizeof(*st)) {
		close(fd);
		errno = EPROTO;
		return NULL;
	}
	st = mmap(NULL, sizeof(*st), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (st == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	if (st->magic != SIM_MAGIC || st->version != SIM_VERSION || st->size != sizeof(*st)) {
		munmap(st, sizeof(*st));
		close(fd);
		errno = EPROTO;
		return NULL;
	}
	at = __atomic_fetch_add(&nopened, 1, __ATOMIC_SEQ_CST);
	if (at >= MAX_OPEN) {
		munmap(st, sizeof(*st));
		close(fd);
		errno = EMFILE;
		return NULL;
	}
	opened[at].fd = fd;
	__atomic_store_n(&opened[at].st, st, __ATOMIC_RELEASE);
	return st;
}

/* $SIMGPU_STATE, else the file `state` one folder above the library's own. */
struct sim_state *sim_attach(const void *symbol_in_library)
{
	const char *env = getenv("SIMGPU_STATE");
	char path[PATH_MAX];
	const char *slash;
	Dl_info info;

	if (env && *env)
		return sim_open(env);
	if (!dladdr(symbol_in_library, &info) || !info.dli_fname) {
		errno = ENOENT;
		return NULL;
	}
	slash = strrchr(info.dli_fname, '/');
	snprintf(path, sizeof(path), "%.*s/../state", slash ? (int)(slash - info.dli_fname) : 1,
		 slash ? info.dli_fname : ".");
	return sim_open(path);
}

void sim_lock(struct sim_state *st)
{
	/* The holder was killed. Whatever it was doing to the model was one
	 * step of one op: nothing needs repair, its slot is reaped later. */
	if (pthread_mutex_lock(&st->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&st->lock);
}

void sim_unlock(struct sim_state *st)
{
	pthread_mutex_unlock(&st->lock);
}

int sim_descriptor(const struct sim_state *st)
{
	unsigned at = 0;

	while (at < MAX_OPEN && __atomic_load_n(&opened[at].st, __ATOMIC_ACQUIRE) != st)
		at++;
	return at == MAX_OPEN ? -1 : opened[at].fd;
}

static int lock_byte(const struct sim_state *st, uint32_t slot, short type, int cmd,
		     struct flock *fl)
{
	*fl = (struct flock){.l_type = type,
			     .l_whence = SEEK_SET,
			     .l_start = (off_t)(SIM_LOCK_BASE + slot),
			     .l_len = 1};
	return fcntl(sim_descriptor(st), cmd, fl);
}

static uint64_t own_start_time(char *name, size_t n)
{
	char buf[1024];
	char *open_paren, *close_paren;
	uint64_t start = 0;
	FILE *f = fopen("/proc/self/stat", "re");

	snprintf(name, n, "?");
	if (!f)
		return 0;
	if (fgets(buf, sizeof(buf), f)) {
		open_paren = strchr(buf, '(');
		close_paren = strrchr(buf, ')');
		if (open_paren && close_paren) {
			snprintf(name, n, "%.*s", (int)(close_paren - open_paren - 1),
				 open_paren + 1);
			/* state is field 3, start time field 22 */
			if (sscanf(close_paren + 2,
				   "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
				   "%*s %*s "
				   "%*s %*s %lu",
				   &start) != 1)
				start = 0;
		}
	}
	fclose(f);
	return start;
}

int sim_proc_add(struct sim_state *st)
{
	char name[32];
	uint64_t start = own_start_time(name, sizeof(name));
	struct flock fl;

	sim_reap(st, true);
	/* a former image of this very process, before execve */
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++)
		if (st->proc[i].used && st->proc[i].pid == getpid() &&
		    st->proc[i].start_time == start)
			sim_proc_drop(st, i);
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		struct sim_proc *p = &st->proc[i];

		if (p->used || lock_byte(st, i, F_WRLCK, F_SETLK, &fl))
			continue;
		memset(p, 0, sizeof(*p));
		p->pid = getpid();
		p->start_time = start;
		memcpy(p->name, name, sizeof(p->name));
		p->used = 1;
		return (int)i;
	}
	return -EAGAIN;
}

/* The pid that this process knows another by, as the driver tells it: the kernel
 * translates that of a lock's owner, whatever PID namespace it is in. */
int32_t sim_proc_pid(const struct sim_state *st, uint32_t proc)
{
	struct flock fl;

	if (lock_byte(st, proc, F_WRLCK, F_GETLK, &fl) == 0 && fl.l_type != F_UNLCK && fl.l_pid > 0)
		return fl.l_pid;
	return st->proc[proc].pid;
}

void sim_proc_drop(struct sim_state *st, uint32_t proc)
{
	struct flock fl;

	for (uint32_t i = 0; i < SIM_MAX_CTX; i++) {
		if (st->ctx[i].used && st->ctx[i].proc == proc)
			sim_ctx_drop(st, i);
		if (st->ipc[i].key && st->ipc[i].proc == proc)
			st->ipc[i].key = 0;
	}
	sim_export_leave(st, proc, 0);
	memset(st->proc[proc].mem, 0, sizeof(st->proc[proc].mem));
	if (st->proc[proc].pid == getpid())
		lock_byte(st, proc, F_UNLCK, F_SETLK, &fl);
	st->proc[proc].used = 0;
}

/* Clears the slots of processes that are gone; at most every 20 ms unless now. */
void sim_reap(struct sim_state *st, bool now)
{
	uint64_t t = sim_now();
	struct flock fl;

	if (!now && t - st->reaped_ns < REAP_EVERY_NS)
		return;
	st->reaped_ns = t;
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		struct sim_proc *p = &st->proc[i];

		/* a lock of one's own never conflicts, so this process cannot test itself */
		if (!p->used || p->pid == getpid())
			continue;
		if (lock_byte(st, i, F_WRLCK, F_GETLK, &fl) == 0 && fl.l_type == F_UNLCK &&
		    !sim_space_works(st, i))
			sim_proc_drop(st, i);
	}
	sim_export_reap(st);
}

uint64_t sim_mem_used(const struct sim_state *st, uint32_t card)
{
	uint64_t sum = st->card[card].conf.reserved + sim_export_unpaid(st, card);

	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++)
		if (st->proc[i].used)
			sum += st->proc[i].mem[card];
	return sum;
}

int sim_mem_add(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes)
{
	uint64_t total = st->card[card].conf.memory, most, used;

	if (bytes > total)
		return -ENOMEM;
	if (sim_mem_used(st, card) + bytes > total) {
		sim_reap(st, true);
		if (sim_mem_used(st, card) + bytes > total)
			return -ENOMEM;
	}
	if (sim_limit_of(st, proc, card, &most, &used) && (bytes > most || used > most - bytes))
		return -ENOMEM;
	st->proc[proc].mem[card] += bytes;
	return 0;
}

void sim_mem_sub(struct sim_state *st, uint32_t proc, uint32_t card, uint64_t bytes)
{
	uint64_t *m = &st->proc[proc].mem[card];

	*m = bytes < *m ? *m - bytes : 0;
}
