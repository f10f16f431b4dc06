/* SPDX-License-Identifier: Apache-2.0 */
/* shared_test.c - memory that a descriptor keeps alive: who exported it pays until it is closed. */
#include "../../libvgpu/memory/shared.c"

#include <fcntl.h>
#include <unistd.h>

#include "check.h"

#define MIB (1ull << 20)

struct vgpu_real vgpu_real;
struct vgpu_state vgpu_state;
static uint64_t given_back, charged;

void vgpu_need_cuda(void)
{
}

void vgpu_release(int card, uint64_t bytes)
{
	CHECK_EQ(card, 1);
	given_back += bytes;
}

void vgpu_charge_forced(int card, uint64_t bytes)
{
	CHECK_EQ(card, 1);
	charged += bytes;
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
	given_back = charged = 0;
	vgpu_shared_release(handle, 1, MIB);
	CHECK_EQ(given_back - charged, want);
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
	settled(0);
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
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), more, next;

	for (unsigned i = 0; i < MAX_KEPT; i++) {
		CHECK(vgpu_shared_note(100 + i, fd));
		let_go(100 + i, 0);
	}
	next = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(next);
	CHECK_EQ(export(&more, 999), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQ(fcntl(next, F_GETFD), -1); /* and its descriptor closed */
	let_go(999, MIB);
	close(fd);
	settled(MAX_KEPT * MIB);
	CHECK_EQ(export(&more, 999), CUDA_SUCCESS);
	close(more);
}

static bool any(const struct vgpu_item *item, uint64_t unused)
{
	(void)item;
	(void)unused;
	return true;
}

/* What has a part of the addresses, by itself or by what is mapped there; nothing beside. */
static void test_a_range_keeps_what_is_in_it(void)
{
	static struct vgpu_table table = VGPU_TABLE_INIT;
	struct vgpu_range range = {.begin = 0x1800, .end = 0x3001};
	struct vgpu_item item = {.size = 0x1000};
	int fd;

	for (uint64_t i = 0; i < 5; i++) {
		item.key = i << 12;
		item.other = 50 + i;
		CHECK(vgpu_table_put(&table, &item));
	}
	for (unsigned mapped = 0; mapped < 2; mapped++) {
		range.mapped = mapped;
		range.fd = fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		vgpu_table_sweep(&table, (uintptr_t)&range, vgpu_shared_range);
		for (uint64_t i = 0; i < 5; i++)
			let_go(mapped ? 50 + i : i << 12, i == 0 || i == 4 ? MIB : 0);
		close(fd);
		settled(3 * MIB);
	}
	/* Of a descriptor that cannot be looked at nothing is known: it is not given back. */
	vgpu_table_sweep(&table, (uintptr_t)&range, vgpu_shared_range);
	CHECK_EQ(table.count, 2);
	vgpu_table_sweep(&table, 0, any);
}

int main(void)
{
	static struct vgpu_grant grant;

	vgpu_state.grant = &grant;
	vgpu_real.cuMemExportToShareableHandle = real_export;
	test_who_exports_pays_until_the_descriptor_is_closed();
	test_without_room_nothing_is_exported();
	test_a_range_keeps_what_is_in_it();
	return done("shared");
}
