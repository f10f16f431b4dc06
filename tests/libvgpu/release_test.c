/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release_test.c - as soon as the driver has freed memory, another thread can get its address or handle.
 * Here that happens within the driver's free: the charge of the new allocation must stay, and that of
 * the old one must go. If the driver fails, nothing is released.
 */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-parameter" /* of stubs */
#include "../../libvgpu/memory/array.c"
#define forget forget_linear
#define freed freed_linear
#include "../../libvgpu/memory/linear.c"
#undef forget
#undef freed
#define card_of card_of_import
#include "../../libvgpu/memory/vmm.c"
#undef card_of
#define forget forget_module
#include "../../libvgpu/memory/module.c"
#undef forget
#include "../../libvgpu/memory/async.c"
#include "../../libvgpu/memory/owner.c"
#include "../../libvgpu/memory/pool.c"
#undef CREATE
#define destroy destroy_context
#include "../../libvgpu/hooks/context.c"
#undef destroy

#include <string.h>

#include "check.h"

#define SMALL (2ull << 20)
#define LARGE (10ull << 30)
#define ADDRESS 0x7f0000000000ull

struct vgpu_real vgpu_real;
struct vgpu_state vgpu_state;
uint64_t vgpu_managed_bytes;
int vgpu_only_card, vgpu_captures;

static uint64_t held, card_has;
static CUresult answer;         /* of the driver's free */
static void (*meanwhile)(void); /* another thread, after the driver has freed */
static struct pool pool_of_test;

static CUresult frees(void)
{
	void (*other)(void) = meanwhile;

	meanwhile = NULL;
	if (answer == CUDA_SUCCESS && other)
		other();
	return answer;
}

/* ------------------------------------------------ the driver: one address and one handle for all */
static CUresult driver_alloc(CUdeviceptr *p, size_t n)
{
	*p = ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_free(CUdeviceptr p)
{
	return frees();
}

static CUresult driver_free_async(CUdeviceptr p, CUstream s)
{
	return frees();
}

static CUresult driver_host_func(CUstream s, void (*fn)(void *), void *data)
{
	fn(data);
	return CUDA_SUCCESS;
}

static CUresult driver_array(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	*array = (CUarray)ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_array_destroy(CUarray array)
{
	return frees();
}

static CUresult driver_create(CUmemGenericAllocationHandle *h, size_t n,
			      const CUmemAllocationProp *prop, unsigned long long flags)
{
	*h = ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_release(CUmemGenericAllocationHandle h)
{
	return frees();
}

static CUresult driver_map(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h,
			   unsigned long long flags)
{
	return CUDA_SUCCESS;
}

static CUresult driver_unmap(CUdeviceptr p, size_t n)
{
	return frees();
}

static CUresult driver_context(CUcontext *ctx, unsigned flags, CUdevice dev)
{
	*ctx = (CUcontext)ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *ctx)
{
	*ctx = (CUcontext)ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_destroy(CUcontext ctx)
{
	return frees();
}

static uint64_t code; /* of the next module */
static CUresult driver_load(CUmodule *module, const char *file)
{
	card_has -= code;
	*module = (CUmodule)ADDRESS;
	return CUDA_SUCCESS;
}

static CUresult driver_unload(CUmodule module)
{
	return frees();
}

static CUresult driver_info(size_t *free_bytes, size_t *total)
{
	*free_bytes = card_has;
	*total = card_has;
	return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------------- the rest of the library */
int vgpu_mem_take(int card, uint64_t bytes)
{
	held += bytes;
	return 0;
}

CUresult vgpu_mem_done(int card, uint64_t bytes, CUresult r)
{
	held -= r == CUDA_SUCCESS ? 0 : bytes;
	return r;
}

int vgpu_charge(int card, uint64_t bytes)
{
	return vgpu_mem_take(card, bytes);
}

void vgpu_charge_forced(int card, uint64_t bytes)
{
	vgpu_mem_take(card, bytes);
}

void vgpu_release(int card, uint64_t bytes)
{
	held -= bytes;
}

void vgpu_charge_less(int card, uint64_t *charged, uint64_t bytes)
{
	*charged -= bytes;
	vgpu_release(card, bytes);
}

void vgpu_item_release(const struct vgpu_item *item)
{
	vgpu_release(item->card, item->size);
}

void vgpu_shared_release(uint64_t key, int card, uint64_t bytes)
{
	vgpu_release(card, bytes);
}

bool vgpu_not_granted(CUdevice dev)
{
	return dev < 0;
}

int vgpu_card_of_device(CUdevice dev)
{
	return dev;
}

uint64_t vgpu_limit(int card)
{
	return 80ull << 30;
}

bool vgpu_overhead_counted(int card, uint64_t *bytes)
{
	*bytes = 0;
	return false;
}

void vgpu_memory_ended(int card, CUdevice dev, uint64_t owner)
{
	vgpu_linear_ended(owner);
}

#define STUB(type, name, params) \
	type name params         \
	{                        \
		return (type)0;  \
	}
/* clang-format off */
STUB(void, vgpu_need_cuda, (void))
STUB(void, vgpu_mem_begin, (void))
STUB(void, vgpu_mem_end, (void))
STUB(void, vgpu_gate_ends, (CUcontext ctx))
STUB(void, vgpu_gate_ended, (CUcontext ctx, bool gone))
STUB(void, vgpu_gate_schedule, (int card, const struct vgpu_schedule *s))
STUB(void, vgpu_rm_creating, (int card))
STUB(void, vgpu_slices_apply, (int card, const struct vgpu_schedule *s, enum vgpu_look look))
STUB(void, vgpu_watcher_start, (void))
STUB(void, vgpu_cards_init, (void))
STUB(void, vgpu_cards_mps, (void))
STUB(void, vgpu_captures_ended, (CUcontext ctx))
STUB(int, vgpu_overhead_context, (int card))
STUB(void, vgpu_overhead_context_gone, (int card))
STUB(void, vgpu_env_cards, (void))
STUB(bool, vgpu_captured, (CUstream stream, bool unsaid))
STUB(int, vgpu_card_asked, (void))
STUB(CUresult, vgpu_oom, (int card, uint64_t bytes))
STUB(uint64_t, vgpu_mem_used, (int card))
STUB(void, vgpu_charge_moves, (int card, uint64_t from, uint64_t to))
STUB(void, vgpu_charge_down_to, (int card, uint64_t *charged, uint64_t want, const uint64_t *live, uint64_t (*of)(uint64_t)))
STUB(void, vgpu_frees_mark, (struct vgpu_frees *f, CUstream stream, uint64_t bytes))
STUB(void, vgpu_frees_none, (struct vgpu_frees *f))
STUB(bool, vgpu_frees_passed, (struct vgpu_frees *f))
STUB(void, vgpu_frees_unknown, (struct vgpu_frees *f))
STUB(int, vgpu_imports_more, (int card, uint64_t bytes))
STUB(void, vgpu_imports_less, (int card, uint64_t bytes))
STUB(int, vgpu_managed_more, (int card, uint64_t bytes))
STUB(void, vgpu_managed_less, (int card, uint64_t bytes))
STUB(CUresult, vgpu_pool_book, (struct vgpu_booking *b, struct pool *p, size_t size, CUstream stream))
STUB(bool, vgpu_pool_again, (struct vgpu_booking *b, CUdeviceptr *dptr, CUresult *r))
STUB(void, vgpu_shared_freed, (uint64_t key, int card, uint64_t bytes))
STUB(bool, vgpu_shared_note, (uint64_t key, int fd))
STUB(bool, vgpu_shared_note_kept, (struct vgpu_kept *k, int fd))
STUB(bool, vgpu_shared_note_data, (uint64_t key, const void *data))
STUB(bool, vgpu_shared_one, (struct vgpu_table *t, struct vgpu_range *range))
STUB(bool, vgpu_shared_range, (const struct vgpu_item *item, uint64_t range))
STUB(void, vgpu_shared_settle, (void))
STUB(void, vgpu_shared_import_again, (struct vgpu_kept *k))
STUB(void, vgpu_shared_unimport, (struct vgpu_kept *k))
STUB(uint64_t, vgpu_use_key, (const char *call, const void *handle, const char *name))
STUB(bool, vgpu_used, (uint64_t key))
STUB(void, vgpu_use_note, (uint64_t key))
STUB(void, vgpu_uses_forget, (void))
/* clang-format on */

/* ------------------------------------------------------------------------------------ the cases */
static void alloc_large(void)
{
	CUdeviceptr p;

	CHECK_EQ(cuMemAlloc_v2(&p, LARGE), CUDA_SUCCESS);
	CHECK_EQ(p, ADDRESS);
}

static CUresult free_linear(void)
{
	return cuMemFree_v2(ADDRESS);
}

static CUresult free_in_stream(void)
{
	return cuMemFreeAsync(ADDRESS, NULL);
}

static void array_of(size_t rows)
{
	CUDA_ARRAY_DESCRIPTOR d = {.Width = 1 << 20, .Height = rows, .Format = 8, .NumChannels = 2};
	CUarray a;

	CHECK_EQ(cuArrayCreate_v2(&a, &d), CUDA_SUCCESS);
}

static void array_large(void)
{
	array_of(LARGE >> 21);
}

static CUresult free_array(void)
{
	return cuArrayDestroy((CUarray)ADDRESS);
}

static void create(size_t n)
{
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle h;

	CHECK_EQ(cuMemCreate(&h, n, &prop, 0), CUDA_SUCCESS);
}

static void create_large(void)
{
	create(LARGE);
}

static CUresult release_handle(void)
{
	return cuMemRelease(ADDRESS);
}

/* The mapping is the last reference; the same address is mapped to a new handle. */
static void map_large(void)
{
	struct vgpu_item item = {.key = ADDRESS + 1, .size = LARGE, .refs = 1};

	CHECK(vgpu_table_put(&handles, &item));
	held += LARGE;
	CHECK_EQ(cuMemMap(ADDRESS, LARGE, 0, ADDRESS + 1, 0), CUDA_SUCCESS);
	CHECK_EQ(cuMemRelease(ADDRESS + 1), CUDA_SUCCESS);
}

static CUresult unmap(void)
{
	return cuMemUnmap(ADDRESS, LARGE);
}

static void load(uint64_t n)
{
	CUmodule m;

	code = n;
	CHECK_EQ(cuModuleLoad(&m, ""), CUDA_SUCCESS);
}

static void load_large(void)
{
	load(LARGE);
}

static CUresult unload(void)
{
	return cuModuleUnload((CUmodule)ADDRESS);
}

static void context_with(uint64_t n)
{
	CUcontext ctx;
	CUdeviceptr p;

	CHECK_EQ(cuCtxCreate_v2(&ctx, 0, 0), CUDA_SUCCESS);
	CHECK_EQ(cuMemAlloc_v2(&p, n), CUDA_SUCCESS);
}

static void context_large(void)
{
	context_with(LARGE);
}

static CUresult destroy(void)
{
	return cuCtxDestroy_v2((CUcontext)ADDRESS);
}

static void pool_has(uint64_t n)
{
	pool_of_test.live += n;
	vgpu_pool_keep(&pool_of_test, ADDRESS, n);
}

static void keep_large(void)
{
	pool_has(LARGE);
}

static void small_of(const char *kind)
{
	CUdeviceptr p;

	if (strncmp(kind, "linear", 6) == 0) {
		CHECK_EQ(cuMemAlloc_v2(&p, SMALL), CUDA_SUCCESS);
	} else if (strcmp(kind, "array") == 0) {
		array_of(SMALL >> 21 << 3); /* heights are multiples of 8 */
	} else if (strcmp(kind, "context") == 0) {
		context_with(SMALL);
	} else if (strcmp(kind, "module") == 0) {
		load(SMALL);
	} else if (strncmp(kind, "pool", 4) == 0) {
		pool_has(SMALL);
	} else {
		create(SMALL);
	}
	if (strcmp(kind, "mapping") == 0) {
		CHECK_EQ(cuMemMap(ADDRESS, SMALL, 0, ADDRESS, 0), CUDA_SUCCESS);
		CHECK_EQ(cuMemRelease(ADDRESS), CUDA_SUCCESS);
	}
}

static uint64_t counted(void)
{
	return held + pool_of_test.live;
}

static void test_of(const char *kind, void (*large)(void), CUresult (*release)(void))
{
	uint64_t small;

	printf("release: %s\n", kind);
	small_of(kind);
	small = counted();
	CHECK(small >= SMALL && small < LARGE);
	answer = CUDA_ERROR_INVALID_VALUE;
	CHECK_EQ(release(), answer);
	CHECK_EQ(counted(), small);
	answer = CUDA_SUCCESS;
	meanwhile = large;
	CHECK_EQ(release(), CUDA_SUCCESS);
	CHECK_EQ(counted(), LARGE);
	CHECK_EQ(release(), CUDA_SUCCESS);
	CHECK_EQ(counted(), 0);
}

int main(void)
{
	static struct vgpu_grant grant;
	static struct vgpu_slot slot;

	vgpu_state.grant = &grant;
	vgpu_state.slot = &slot;
	vgpu_state.ncards = 1;
	card_has = 60ull << 30;
	vgpu_real.cuMemAlloc_v2 = driver_alloc;
	vgpu_real.cuMemFree_v2 = driver_free;
	vgpu_real.cuMemFreeAsync = driver_free_async;
	vgpu_real.cuLaunchHostFunc = driver_host_func;
	vgpu_real.cuArrayCreate_v2 = driver_array;
	vgpu_real.cuArrayDestroy = driver_array_destroy;
	vgpu_real.cuMemCreate = driver_create;
	vgpu_real.cuMemRelease = driver_release;
	vgpu_real.cuMemMap = driver_map;
	vgpu_real.cuMemUnmap = driver_unmap;
	vgpu_real.cuModuleLoad = driver_load;
	vgpu_real.cuModuleUnload = driver_unload;
	vgpu_real.cuMemGetInfo_v2 = driver_info;
	vgpu_real.cuCtxCreate_v2 = driver_context;
	vgpu_real.cuCtxGetCurrent = driver_current;
	vgpu_real.cuCtxDestroy_v2 = driver_destroy;
	test_of("linear", alloc_large, free_linear);
	test_of("linear in a stream", alloc_large, free_in_stream);
	test_of("array", array_large, free_array);
	test_of("handle", create_large, release_handle);
	test_of("mapping", map_large, unmap);
	test_of("module", load_large, unload);
	test_of("pool", keep_large, free_linear);
	test_of("pool in a stream", keep_large, free_in_stream);
	test_of("context", context_large, destroy);
	return done("release");
}
