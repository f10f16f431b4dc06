/* SPDX-License-Identifier: Apache-2.0 */
/* beside_test.c - whose work in flight counts: that of processes of the job that live. */
#include "../../libvgpu/compute/beside.c"
#include "../../libvgpu/compute/own_time.c"

#include "check.h"

struct vgpu_state vgpu_state;
static struct vgpu_cache_header header;
static struct vgpu_slot slots[3];
static struct vgpu_grant grant;

/* Of a gate's own process and two others: what is in flight beside it, and of how many. */
static void beside(uint64_t now, uint64_t want, uint32_t many)
{
	struct gate g = {.card = 1};
	uint32_t procs = 9;

	CHECK_EQ(vgpu_inflight_beside(&g, now, &procs), want);
	CHECK_EQ(procs, many);
}

int main(void)
{
	const uint64_t now = 5000000000u;

	vgpu_cache_init(&header, &grant);
	header.high_slot = 3;
	vgpu_state.cache = (struct vgpu_cache){.header = &header, .slots = slots};
	vgpu_state.slot = &slots[0];
	for (unsigned i = 0; i < 3; i++) {
		slots[i].owner = i + 1;
		slots[i].heartbeat_ns = now - 1000;
		slots[i].card[1].inflight_ns = 10u << i;
	}
	beside(now, 60, 2);
	slots[1].card[1].inflight_ns = 0;
	beside(now, 40, 1);
	slots[1].card[1].inflight_ns = 20;
	/* Stopped, or suspended: nobody says what has ended. */
	slots[2].heartbeat_ns = now - 4 * HEARTBEAT_NS;
	beside(now, 20, 1);
	/* Of another boot or time namespace: its last sign of life lies ahead. */
	slots[2].heartbeat_ns = now + 864000000000000;
	beside(now, 20, 1);
	/* Another look at the clock may be a little later. */
	slots[2].heartbeat_ns = now + HEARTBEAT_NS;
	beside(now, 60, 2);
	/* Dead, and not cleared yet; cleared. */
	slots[2].died_ns = now;
	beside(now, 20, 1);
	slots[1].owner = 0;
	beside(now, 0, 0);
	return done("beside_test");
}
