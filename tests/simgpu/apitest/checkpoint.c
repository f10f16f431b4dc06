/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - cases about suspending a process, by another one and by itself. */
#define _GNU_SOURCE
#include "apitest.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void is(int pid, CUprocessState want)
{
	CUprocessState state;

	OK(cuCheckpointProcessGetState(pid, &state));
	EQ(state, want);
}

static CUdeviceptr taken;
static CUresult result;
static int returned;

static void *take(void *ctx)
{
	OK(cuCtxSetCurrent(ctx));
	result = cuMemAlloc_v2(&taken, 64 * MIB);
	STORE(&returned, 1);
	return NULL;
}

void case_checkpoint(void)
{
	CUcheckpointLockArgs lock = {.timeoutMs = 50};
	pthread_t thread;
	CUcontext c = start();
	unsigned char byte = 0;
	CUdeviceptr kept, managed;
	int me = getpid(), tid = 0;
	size_t before;

	EQ(cuCheckpointProcessLock(0, NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(cuCheckpointProcessLock(getppid(), NULL), CUDA_ERROR_INVALID_VALUE); /* has no context */
	OK(cuMemAlloc_v2(&kept, 256 * MIB));
	OK(cuMemsetD8_v2(kept, 7, 16));
	is(me, CU_PROCESS_STATE_RUNNING);
	OK(cuCheckpointProcessGetRestoreThreadId(me, &tid));
	TRUE(tid > 0 && tid != me);
	/* Each in its state alone. */
	EQ(cuCheckpointProcessCheckpoint(me, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessRestore(me, NULL), CUDA_ERROR_ILLEGAL_STATE);
	EQ(cuCheckpointProcessUnlock(me, NULL), CUDA_ERROR_ILLEGAL_STATE);
	lock.reserved0 = 1;
	EQ(cuCheckpointProcessLock(me, &lock), CUDA_ERROR_INVALID_VALUE);
	lock.reserved0 = 0;
	/* Work in flight is waited for, up to the timeout. */
	run_us(function("us"), 400000, NULL);
	before = free_bytes();
	EQ(cuCheckpointProcessLock(me, &lock), CUDA_ERROR_NOT_READY);
	is(me, CU_PROCESS_STATE_RUNNING);
	EQ(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	OK(cuCheckpointProcessLock(me, NULL));
	is(me, CU_PROCESS_STATE_LOCKED);
	EQ(cuCheckpointProcessLock(me, NULL), CUDA_ERROR_ILLEGAL_STATE);
	/* Calls wait. */
	EQ(pthread_create(&thread, NULL, take, c), 0);
	OK(cuCheckpointProcessCheckpoint(me, NULL));
	is(me, CU_PROCESS_STATE_CHECKPOINTED);
	EQ(cuCheckpointProcessUnlock(me, NULL), CUDA_ERROR_ILLEGAL_STATE);
	sleep_ms(50);
	EQ(LOAD(&returned), 0);
	OK(cuCheckpointProcessRestore(me, NULL));
	is(me, CU_PROCESS_STATE_LOCKED);
	sleep_ms(50);
	EQ(LOAD(&returned), 0);
	OK(cuCheckpointProcessUnlock(me, NULL));
	EQ(pthread_join(thread, NULL), 0);
	OK(result);
	EQ(before - free_bytes(), 64 * MIB);
	OK(cuMemcpyDtoH_v2(&byte, kept + 9, 1));
	EQ(byte, 7);
	OK(cuStreamQuery(NULL));
	/* Managed memory cannot leave. */
	OK(cuMemAllocManaged(&managed, MIB, 1));
	OK(cuCheckpointProcessLock(me, NULL));
	EQ(cuCheckpointProcessCheckpoint(me, NULL), CUDA_ERROR_NOT_SUPPORTED);
	is(me, CU_PROCESS_STATE_FAILED);
}

/* What another process does with this one, which has 1 GiB: its place is free meanwhile, and it
 * comes back when there is room again. */
void case_checkpoint_room(void)
{
	int ready[2], pid;
	CUdeviceptr all, rest;
	size_t free_then, free_now;
	char c;

	EQ(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		start();
		OK(cuMemAlloc_v2(&all, 1024 * MIB));
		EQ(write(ready[1], "x", 1), 1);
		for (;;)
			pause();
	}
	EQ(read(ready[0], &c, 1), 1);
	start();
	free_then = free_bytes();
	OK(cuCheckpointProcessLock(pid, NULL));
	EQ(free_bytes(), free_then);
	OK(cuCheckpointProcessCheckpoint(pid, NULL));
	free_now = free_bytes();
	TRUE(free_now > free_then + 1024 * MIB); /* its context went, too */
	OK(cuMemAlloc_v2(&all, free_now - 1024 * MIB));
	EQ(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	is(pid, CU_PROCESS_STATE_CHECKPOINTED);
	OK(cuMemFree_v2(all));
	OK(cuCheckpointProcessRestore(pid, NULL));
	OK(cuCheckpointProcessUnlock(pid, NULL));
	is(pid, CU_PROCESS_STATE_RUNNING);
	EQ(free_bytes(), free_then);
	/* Killed while it is suspended, it leaves nothing. */
	OK(cuCheckpointProcessLock(pid, NULL));
	OK(cuCheckpointProcessCheckpoint(pid, NULL));
	EQ(kill(pid, SIGKILL), 0);
	EQ(waitpid(pid, NULL, 0), pid);
	EQ(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_INVALID_VALUE);
	EQ(free_bytes(), free_now);
	OK(cuMemAlloc_v2(&rest, free_now - 2 * MIB));
}
