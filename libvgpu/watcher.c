/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watcher.c - one thread a process, started with its first context: follows
 * the grant's schedule, closes and reaps batches, keeps the heartbeat. It takes
 * no signals and makes no CUDA call while a stream capture is open.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "hami_view.h"
#include "vgpu.h"

#define TICK_BUSY_NS 500000L   /* batches are open or in flight */
#define TICK_IDLE_NS 10000000L /* only the grant to watch */
/* Slices are read back this often, and a lease that has run out is noticed. */
#define VERIFY_NS 1000000000u

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t started_in; /* pid of the process that has a watcher */

static void follow_grant(bool verify)
{
	for (unsigned i = 0; i < vgpu_state.ncards; i++) {
		struct vgpu_schedule s;

		if (!vgpu_schedule_read(vgpu_state.grant, i, &s))
			continue;
		vgpu_schedule_at(&s, vgpu_now());
		vgpu_gate_schedule((int)i, &s);
		if (__atomic_load_n(&vgpu_my((int)i)->contexts, __ATOMIC_RELAXED))
			vgpu_slices_apply((int)i, &s, verify);
	}
}

static void *watch(void *unused)
{
	uint32_t seen = ~__atomic_load_n(&vgpu_state.grant->generation, __ATOMIC_ACQUIRE);
	uint64_t beat = 0, verified = 0;
	struct timespec ts;

	(void)unused;
	pthread_setname_np(pthread_self(), "vgpu-watcher");
	vgpu_host_pid();
	for (;;) {
		uint32_t generation =
			__atomic_load_n(&vgpu_state.grant->generation, __ATOMIC_ACQUIRE);
		uint64_t now = vgpu_now();
		bool busy;

		if (generation != seen || now - verified >= VERIFY_NS) {
			follow_grant(now - verified >= VERIFY_NS);
			if (now - verified >= VERIFY_NS)
				verified = now;
			seen = generation;
		}
		busy = vgpu_gate_tick();
		vgpu_working_tick(now);
		vgpu_overhead_tick(now);
		if (now - beat >= HEARTBEAT_NS) {
			beat = now;
			__atomic_store_n(&vgpu_state.slot->heartbeat_ns, now, __ATOMIC_RELAXED);
			clock_gettime(CLOCK_REALTIME, &ts);
			vgpu_hami_view_update((char *)vgpu_state.cache.header - VGPU_CACHE_OFFSET,
					      vgpu_state.grant, &vgpu_state.cache,
					      (uint64_t)ts.tv_sec * 1000000000u +
						      (uint64_t)ts.tv_nsec);
		}
		nanosleep(&(struct timespec){.tv_nsec = busy ? TICK_BUSY_NS : TICK_IDLE_NS}, NULL);
	}
	return NULL;
}

void vgpu_watcher_start(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;

	if (!vgpu_state.grant ||
	    __atomic_load_n(&started_in, __ATOMIC_ACQUIRE) == (uint32_t)getpid())
		return;
	pthread_mutex_lock(&start_lock);
	if (started_in != (uint32_t)getpid()) {
		/* The application's signals are not for this thread. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		pthread_attr_init(&attr);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, 256 * 1024);
		if (pthread_create(&thread, &attr, watch, NULL) == 0)
			__atomic_store_n(&started_in, (uint32_t)getpid(), __ATOMIC_RELEASE);
		else
			vgpu_log(VGPU_LOG_ERROR, "watcher: no thread");
		pthread_attr_destroy(&attr);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	pthread_mutex_unlock(&start_lock);
}
#endif
