/* SPDX-License-Identifier: Apache-2.0 */
/* shared_test.c - memory that a descriptor keeps alive: who exported it pays until it is closed. */
#include "../../libvgpu/memory/shared.c"

#include <fcntl.h>
#include <unistd.h>

#include "check.h"

#define MIB (1ull << 20)

struct vgpu_real vgpu_real;
struct vgpu_state vgpu_state;
static uint64_t given_back;

void vgpu_need_cuda(void)
{
}

void vgpu_release(int card, uint64_t bytes)
{
	CHECK_EQ(card, 1);
	given_back += bytes;
}

/* The driver's: a new descriptor at each call. */
static CUresult real_export(void *to, CUmemGenericAllocationHandle handle, int type,
			    unsigned long long flags)
{
	(void)handle;
	(void)type;
	(void)flags;
	*(int *)to = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return *(int *)to < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult export(int *fd, uint64_t handle)
{
	return cuMemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    0);
}

static void let_go(uint64_t handle, uint64_t want)
{
	given_back = 0;
	vgpu_shared_release(handle, 1, MIB);
	CHECK_EQ(given_back, want);
}

static void settled(uint64_t want)
{
	given_back = 0;
	vgpu_shared_settle();
	CHECK_EQ(given_back, want);
}

static void test_who_exports_pays_until_the_descriptor_is_closed(void)
{
	int a, b;

	let_go(1, MIB); /* never exported */
	CHECK_EQ(export(&a, 2), CUDA_SUCCESS);
	let_go(2, 0);
	settled(0);
	close(a);
	settled(MIB);
	settled(0);
	/* Twice exported, it is one piece. */
	CHECK(export(&a, 3) == CUDA_SUCCESS && export(&b, 3) == CUDA_SUCCESS);
	let_go(3, 0);
	close(a);
	close(b);
	settled(MIB);
	/* Closed before its release. */
	CHECK_EQ(export(&a, 4), CUDA_SUCCESS);
	close(a);
	let_go(4, MIB);
	/* The number of a closed one is given out again. */
	CHECK_EQ(export(&a, 5), CUDA_SUCCESS);
	let_go(5, 0);
	close(a);
	given_back = 0;
	CHECK(export(&b, 6) == CUDA_SUCCESS && b == a);
	CHECK_EQ(given_back, MIB);
	close(b);
	let_go(6, MIB);
}

/* Where the table is full the export is refused: its memory would be nobody's. */
static void test_without_room_nothing_is_exported(void)
{
	int fd[MAX_KEPT], more, next;

	for (unsigned i = 0; i < MAX_KEPT; i++) {
		CHECK_EQ(export(&fd[i], 100 + i), CUDA_SUCCESS);
		let_go(100 + i, 0);
	}
	next = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(next);
	CHECK_EQ(export(&more, 999), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(fcntl(next, F_GETFD), -1); /* and its descriptor closed */
	let_go(999, MIB);
	for (unsigned i = 0; i < MAX_KEPT; i++)
		close(fd[i]);
	settled(MAX_KEPT * MIB);
	CHECK_EQ(export(&more, 999), CUDA_SUCCESS);
	close(more);
}

int main(void)
{
	static struct vgpu_grant grant;

	vgpu_state.grant = &grant;
	vgpu_real.cuMemExportToShareableHandle = real_export;
	test_who_exports_pays_until_the_descriptor_is_closed();
	test_without_room_nothing_is_exported();
	return done("shared");
}
