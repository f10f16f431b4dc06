/* SPDX-License-Identifier: Apache-2.0 */
/* wait_test.c - the typical length of launches. */
#include "../../libvgpu/compute/wait.c"

#include "check.h"

struct vgpu_state vgpu_state;
static struct vgpu_slot slot;

static void launched(uint64_t ns, uint64_t least, uint64_t most)
{
	static struct gate g;

	note_launch(&g, ns);
	CHECK(slot.card[0].typical_ns >= least);
	CHECK(slot.card[0].typical_ns <= most);
}

int main(void)
{
	vgpu_state.slot = &slot;
	launched(1000, 1000, 1000);
	launched(3500000000, 3400000000, 3500000000);
	launched(4000000000, 3900000000, 4000000000);
	launched(1000, 3900000000, 4000000000);
	return done("wait_test");
}
