/* SPDX-License-Identifier: Apache-2.0 */
/* use_test.c - which handles were used before: as many as a large program has, wherever
 * the driver puts them. */
#include "../../libvgpu/memory/first_use.c"

#include <string.h>

#include "check.h"

#define HANDLES 1000u
#define LAYOUTS 50u

struct vgpu_real vgpu_real;
static CUcontext current = (CUcontext)0x55d0c0ffee00;

static CUresult get_current(CUcontext *ctx)
{
	*ctx = current;
	return CUDA_SUCCESS;
}

/* Which call it was: only told apart. */
static const char *const get_function = (const char *)0x7f00a010, *const get_global =
									  (const char *)0x7f00a011;

static void *handle(unsigned layout, unsigned i)
{
	/* Objects of 16 to 800 bytes, one after another or spread by a heap. */
	return (void *)(0x55d000000000 + (uintptr_t)layout * 0x12345670 +
			(uintptr_t)i * 16 * (1 + layout) +
			(layout & 1 ? (uintptr_t)(i % 7) << 30 : 0));
}

static void test_none_is_pushed_out(void)
{
	for (unsigned layout = 0; layout < LAYOUTS; layout++) {
		unsigned lost = 0;

		vgpu_uses_forget();
		for (unsigned i = 0; i < HANDLES; i++) {
			uint64_t key = vgpu_use_key(get_function, handle(layout, i), NULL);

			CHECK(key && !vgpu_used(key));
			vgpu_use_note(key);
		}
		for (unsigned i = 0; i < HANDLES; i++)
			lost += !vgpu_used(vgpu_use_key(get_function, handle(layout, i), NULL));
		CHECK_EQ(lost, 0);
		memset(used, 0, sizeof used);
	}
}

static void test_places_of_the_forgotten_are_used_again(void)
{
	unsigned lost;

	for (unsigned round = 0; round < 100; round++) {
		vgpu_uses_forget();
		/* Those that have the place of a forgotten one push each other out first. */
		for (unsigned again = 0; again < 20; again++) {
			lost = 0;
			for (unsigned i = 0; i < 300; i++) {
				uint64_t key = vgpu_use_key(get_function, handle(3, i), NULL);

				lost += !vgpu_used(key);
				vgpu_use_note(key);
			}
			if (again > 0 && !lost)
				break;
		}
		CHECK_EQ(lost, 0);
	}
}

static void test_what_makes_a_use(void)
{
	void *h = handle(0, 1);
	uint64_t key = vgpu_use_key(get_global, h, "weights");

	vgpu_use_note(key);
	CHECK(vgpu_used(key));
	CHECK(vgpu_use_key(get_global, h, "weights") == key);
	CHECK(!vgpu_used(vgpu_use_key(get_global, h, "weight")));
	CHECK(!vgpu_used(vgpu_use_key(get_global, handle(0, 2), "weights")));
	CHECK(!vgpu_used(vgpu_use_key(get_function, h, "weights")));
	current = (CUcontext)0x55d0c0ffee40;
	CHECK(!vgpu_used(vgpu_use_key(get_global, h, "weights")));
	current = NULL;
	CHECK_EQ(vgpu_use_key(get_global, h, "weights"), 0);
	vgpu_use_note(0);
	CHECK(!vgpu_used(0));
	current = (CUcontext)0x55d0c0ffee00;
	vgpu_uses_forget();
	CHECK(!vgpu_used(vgpu_use_key(get_global, h, "weights")));
}

int main(void)
{
	vgpu_real.cuCtxGetCurrent = get_current;
	test_what_makes_a_use();
	test_none_is_pushed_out();
	test_places_of_the_forgotten_are_used_again();
	return done("use_test");
}
