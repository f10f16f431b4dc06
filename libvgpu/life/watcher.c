/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watcher.c - one thread a process, started with its first context: follows
 * the grant's schedule, closes and reaps batches, keeps the heartbeat. It takes
 * no signals and makes no CUDA call while a stream capture is open.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../base/log.h"
#include "../compute/compute.h"
#include "../compute/queues.h"
#include "../compute/waits.h"
#include "../hami_view.h"
#include "../job/ask.h"
#include "../job/job.h"
#include "../kernel/kernel.h"
#include "../memory/memory.h"
#include "../slices/slices.h"
#include "watcher.h"

#define TICK_BUSY_NS 500000L   /* batches are open or in flight */
#define TICK_IDLE_NS 10000000L /* only the grant to watch */
/* Slices are read back this often, and a lease that has run out is noticed. */
#define VERIFY_NS 1000000000u
/* Groups that streams make, or a process that goes on after it was suspended, have them soon. Not
 * at once: some programs make streams all the time. The driver may set its own again when it
 * schedules a group, which is seen when slices are read back. */
#define GROWN_NS 20000000u

static VGPU_PRIVATE pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t started_in; /* pid of the process that has a watcher */

/* The stack that the watcher and NVML need, without thread-local variables; the largest that is tried. */
#define STACK (256u << 10)
#define MOST_STACK (1ul << 30)

static void follow_grant(enum vgpu_look look)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct vgpu_schedule s;

		if (!vgpu_schedule_read(vgpu_state.grant, i, &s, vgpu_now()))
			continue;
		vgpu_gate_schedule((int)i, &s);
		if (LOAD(&vgpu_my((int)i)->contexts))
			vgpu_slices_apply((int)i, &s, look);
	}
}

static void *watch(void *unused)
{
	uint32_t seen = ~LOAD(&vgpu_state.grant->generation);
	uint64_t beat = 0, verified = 0, looked = 0;
	struct timespec ts;
	bool asked = false;

	(void)unused;
	pthread_setname_np(pthread_self(), "vgpu-watcher");
	for (;;) {
		uint32_t generation = LOAD(&vgpu_state.grant->generation);
		uint64_t now = vgpu_now();
		bool grown = now - looked >= GROWN_NS && vgpu_rm_grown();
		bool verify = now - verified >= VERIFY_NS, busy;

		if (generation != seen || grown || verify) {
			follow_grant(verify  ? VGPU_READ_BACK
				     : grown ? VGPU_NEW_GROUPS
					     : VGPU_NO_LOOK);
			verified = verify ? now : verified;
			looked = now;
			seen = generation;
		}
		busy = vgpu_gate_tick();
		busy |= vgpu_marks_look(false);
		vgpu_waits_tick(now);
		vgpu_memory_tick(now);
		if (now - beat >= HEARTBEAT_NS) {
			beat = now;
			STORE(&vgpu_state.slot->heartbeat_ns, now);
			clock_gettime(CLOCK_REALTIME, &ts);
			vgpu_hami_view_update((char *)vgpu_state.cache.header - VGPU_CACHE_OFFSET,
					      vgpu_state.grant, &vgpu_state.cache,
					      (uint64_t)ts.tv_sec * 1000000000u +
						      (uint64_t)ts.tv_nsec);
		}
		/* It may have to wait for gresd. */
		if (!asked)
			vgpu_host_pid();
		asked = true;
		nanosleep(&(struct timespec){.tv_nsec = busy ? TICK_BUSY_NS : TICK_IDLE_NS}, NULL);
	}
	return NULL;
}

/* Now and then what the watcher would do, and a try to start one. */
static void again(void)
{
	static uint64_t next_ns;
	uint64_t now = vgpu_now(), due = LOAD(&next_ns);

	if (now < due || !CAS(&next_ns, &due, now + HEARTBEAT_NS))
		return;
	STORE(&vgpu_state.slot->heartbeat_ns, now);
	vgpu_watcher_start();
}

static void set_unwatched(bool on)
{
	STORE(&vgpu_unwatched, on ? again : NULL);
	vgpu_slot_flag(on ? VGPU_SLOT_UNWATCHED : 0, on ? 0 : VGPU_SLOT_UNWATCHED);
}

/* A thread's stack holds all thread-local variables of the program and of its libraries. dlsym takes
 * a lock under which constructors run. A constructor can wait for a lock of the driver that the
 * caller holds, so this walks the objects instead: no constructor runs under that lock. */
static int add_thread_local(struct dl_phdr_info *object, size_t size, void *sum)
{
	(void)size;
	for (unsigned i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum +=
				object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	return 0;
}

static size_t stack_size(void)
{
	size_t sum = STACK;

	dl_iterate_phdr(add_thread_local, &sum);
	return sum;
}

static int start(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int r = EINVAL;

	/* The application's signals are not for this thread. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	for (size_t size = stack_size(); r == EINVAL && size <= MOST_STACK; size *= 2) {
		pthread_attr_setstacksize(&attr, size);
		r = pthread_create(&thread, &attr, watch, NULL);
	}
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

static int start_once(void)
{
	VGPU_LOCK(&start_lock);

	if (started_in == (uint32_t)getpid())
		return 0;
	int r = start();
	set_unwatched(r != 0);
	if (r == 0)
		STORE(&started_in, (uint32_t)getpid());
	return r;
}

void vgpu_watcher_start(void)
{
	/* No card: there is no job, or this process is refused all. */
	if (!vgpu_state.ncards || LOAD(&started_in) == (uint32_t)getpid())
		return;
	int r = start_once();
	if (r == 0)
		return;
	follow_grant(VGPU_NO_LOOK);
	vgpu_warn_once("vgpu: watcher: no thread can be started (%s): this process is held at "
		       "its share, and learns late of changes: want room for one, see ulimit -u",
		       strerror(r));
}

void vgpu_watcher_in_child(void)
{
	STORE(&vgpu_unwatched, NULL);
}
