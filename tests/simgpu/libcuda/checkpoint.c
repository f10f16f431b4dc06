// SPDX-License-Identifier: Apache-2.0
/*
 * checkpoint.c - suspending a process's CUDA, as the tool cuda-checkpoint does through these calls.
 *
 * Whoever asks writes into the target's part of the model; a thread of the target's driver does
 * it. Locked, the target's calls wait and its work has ended. Checkpointed, what it had on cards
 * is with the host, and the resource manager's client is closed. Restored, contexts are the same
 * with channel groups of a new client, and it is still locked. As NVIDIA's documentation says
 * (CUDA 12.8; README of cuda-checkpoint), which also has that managed memory makes it fail for
 * good. Not seen on a card: that the client is closed without a call that frees its objects.
 */
#define _GNU_SOURCE
#include "local.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_NS 1000000ull   /* whether work has ended */
#define ANSWER_NS 5000000ull /* whether who is asked still lives */

static uint64_t had[SIM_MAX_CARDS]; /* by the process, when it left its cards */

static void futex(uint32_t *word, int op, uint32_t value, uint64_t ns)
{
	struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	syscall(SYS_futex, word, op, value, ns ? &ts : NULL, NULL, 0);
}

static bool at_work(void)
{
	for (CUcontext c = drv.contexts; c; c = c->next)
		if (sim_busy(drv.st, (uint32_t)c->slot))
			return true;
	return drv.calls != 0;
}

/* Calls that have begun end, with the work that they wait for. */
static CUresult lock_calls(uint32_t timeout_ms)
{
	uint64_t until = timeout_ms ? sim_now() + timeout_ms * 1000000ull : SIM_NEVER;

	drv.locked = true;
	for (;;) {
		drv_model_lock();
		sim_advance_all(drv.st);
		drv_model_unlock();
		effects_take();
		if (!at_work())
			return CUDA_SUCCESS;
		if (sim_now() >= until)
			return CUDA_ERROR_NOT_READY;
		drv_sleep_until(sim_now() + LOOK_NS);
	}
}

static void unlock_calls(void)
{
	drv.locked = false;
	pthread_cond_broadcast(&drv.changed);
}

static CUresult leave_cards(void)
{
	struct block *b;

	for (size_t i = 0; (b = block_at(i)) != NULL; i++)
		if (b->kind == BLOCK_MANAGED)
			return CUDA_ERROR_NOT_SUPPORTED;
	rm_close();
	drv_model_lock();
	sim_advance_all(drv.st);
	sim_proc_leave(drv.st, (uint32_t)drv.proc, had);
	drv_model_unlock();
	return CUDA_SUCCESS;
}

static CUresult return_to_cards(void)
{
	int rc;

	drv_model_lock();
	sim_advance_all(drv.st);
	rc = sim_proc_return(drv.st, (uint32_t)drv.proc, had);
	drv_model_unlock();
	if (rc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (CUcontext c = drv.contexts; c; c = c->next) {
		rm_announce(c);
		rm_usable(c);
	}
	return CUDA_SUCCESS;
}

/* Returns the state that the process is in then. */
static uint32_t act(uint32_t asked, uint32_t timeout_ms, uint32_t state, CUresult *rc)
{
	*rc = CUDA_SUCCESS;
	switch (asked) {
	case SIM_ASK_LOCK:
		*rc = lock_calls(timeout_ms);
		if (*rc)
			unlock_calls();
		return *rc ? state : CU_PROCESS_STATE_LOCKED;
	case SIM_ASK_CHECKPOINT:
		*rc = leave_cards();
		return *rc ? CU_PROCESS_STATE_FAILED : CU_PROCESS_STATE_CHECKPOINTED;
	case SIM_ASK_RESTORE:
		*rc = return_to_cards();
		return *rc ? state : CU_PROCESS_STATE_LOCKED;
	default:
		unlock_calls();
		return CU_PROCESS_STATE_RUNNING;
	}
}

static void *restorer(void *slot)
{
	struct sim_proc *p = slot;
	uint32_t asked, state;
	CUresult rc;

	for (;;) {
		futex(&p->asked, FUTEX_WAIT, SIM_ASK_NOTHING, 0);
		asked = __atomic_load_n(&p->asked, __ATOMIC_ACQUIRE);
		pthread_mutex_lock(&drv.lock);
		if (drv.proc < 0 || p != &drv.st->proc[drv.proc]) { /* the process ends */
			pthread_mutex_unlock(&drv.lock);
			return NULL;
		}
		if (asked) {
			state = act(asked, p->timeout_ms, p->state, &rc);
			drv_model_lock();
			p->state = state;
			p->answer = rc;
			__atomic_store_n(&p->asked, SIM_ASK_NOTHING, __ATOMIC_RELEASE);
			drv_model_unlock();
			futex(&p->asked, FUTEX_WAKE, INT_MAX, 0);
		}
		pthread_mutex_unlock(&drv.lock);
	}
}

static void *restorer_begins(void *slot)
{
	struct sim_proc *p = slot;

	__atomic_store_n(&p->restorer, (int32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
	futex((uint32_t *)&p->restorer, FUTEX_WAKE, INT_MAX, 0);
	return restorer(p);
}

/* Who has a context can be asked about it at once: the thread is known when this returns. */
void checkpoint_start_thread(void)
{
	struct sim_proc *p = &drv.st->proc[drv.proc];
	static bool started;
	sigset_t all, old;
	pthread_t id;

	if (started)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	started = pthread_create(&id, NULL, restorer_begins, p) == 0;
	if (started)
		pthread_detach(id);
	while (started && !__atomic_load_n(&p->restorer, __ATOMIC_ACQUIRE))
		futex((uint32_t *)&p->restorer, FUTEX_WAIT, 0, 0);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* The process of that number with a context; the model's lock is held. */
static CUresult find(int pid, struct sim_proc **found)
{
	if (kill(pid, 0) != 0)
		return errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
	sim_reap(drv.st, true);
	for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
		*found = &drv.st->proc[i];
		if ((*found)->used && (*found)->restorer && sim_proc_pid(drv.st, i) == pid)
			return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* Calls about a process have nothing to do with what locks the caller's own. */
static CUresult enter(int pid, struct sim_proc **found)
{
	CUresult rc;

	if (!__atomic_load_n(&drv.ready, __ATOMIC_ACQUIRE) || drv.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	drv_model_lock();
	rc = pid > 0 ? find(pid, found) : CUDA_ERROR_INVALID_VALUE;
	if (rc)
		drv_model_unlock();
	return rc;
}

static CUresult answer_of(struct sim_proc *p, uint32_t asked, uint64_t start_time)
{
	CUresult rc;
	bool done, gone;

	do {
		futex(&p->asked, FUTEX_WAIT, asked, ANSWER_NS);
		drv_model_lock();
		sim_reap(drv.st, false);
		gone = !p->used || p->start_time != start_time;
		done = p->asked == SIM_ASK_NOTHING;
		rc = gone ? CUDA_ERROR_INVALID_VALUE : p->answer;
		drv_model_unlock();
	} while (!done && !gone);
	return rc;
}

static CUresult ask(int pid, uint32_t what, uint32_t in_state, uint32_t timeout_ms)
{
	struct sim_proc *p;
	uint64_t start_time;
	CUresult rc = enter(pid, &p);

	if (rc)
		return rc;
	if (p->asked || p->state != in_state) {
		drv_model_unlock();
		return CUDA_ERROR_ILLEGAL_STATE;
	}
	start_time = p->start_time;
	p->timeout_ms = timeout_ms;
	__atomic_store_n(&p->asked, what, __ATOMIC_RELEASE);
	drv_model_unlock();
	futex(&p->asked, FUTEX_WAKE, INT_MAX, 0);
	return answer_of(p, what, start_time);
}

static bool all_zero(const void *args, size_t n)
{
	static const char zero[64];

	return !args || memcmp(args, zero, n) == 0;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct sim_proc *p;
	CUresult rc = state ? enter(pid, &p) : CUDA_ERROR_INVALID_VALUE;

	if (rc)
		return rc;
	*state = (CUprocessState)p->state;
	drv_model_unlock();
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct sim_proc *p;
	CUresult rc = tid ? enter(pid, &p) : CUDA_ERROR_INVALID_VALUE;

	if (rc)
		return rc;
	*tid = p->restorer;
	drv_model_unlock();
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	if (args && (args->reserved0 || !all_zero(args->reserved1, sizeof(args->reserved1))))
		return CUDA_ERROR_INVALID_VALUE;
	return ask(pid, SIM_ASK_LOCK, CU_PROCESS_STATE_RUNNING, args ? args->timeoutMs : 0);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	if (!all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return ask(pid, SIM_ASK_CHECKPOINT, CU_PROCESS_STATE_LOCKED, 0);
}

/* To its own cards; to others is not simulated. */
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	if (!all_zero(args, sizeof(*args)))
		return CUDA_ERROR_NOT_SUPPORTED;
	return ask(pid, SIM_ASK_RESTORE, CU_PROCESS_STATE_CHECKPOINTED, 0);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	if (!all_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	return ask(pid, SIM_ASK_UNLOCK, CU_PROCESS_STATE_LOCKED, 0);
}
