/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm_fuzz.c - the ioctls of the program that the library sits in, and the answers of
 * the driver below: of every type, number and size, with structures of just that size.
 * What passes through is what the program has asked and what the driver has answered.
 */
#include "../../libvgpu/kernel/call.c"
#include "../../libvgpu/kernel/devices.c"
#include "../../libvgpu/kernel/groups.c"
#include "../../libvgpu/kernel/ioctl.c"
#include "../../libvgpu/kernel/objects.c"
#include "../../libvgpu/memory/account.c"
#include "../../libvgpu/memory/openfiles.c"
#include "../../libvgpu/memory/shared.c"

#include "../libvgpu/room.h"
#include "input.h"

#define MOST_CALLS 200

struct vgpu_state vgpu_state;
struct vgpu_real vgpu_real;
int (*vgpu_transport)(int fd, unsigned long req, void *arg);
void *(*vgpu_real_dlsym)(void *handle, const char *name);

static struct input in;
static int asked;
static bool own;    /* the call is the library's, whose pointers are good */
static bool hooked; /* libcuda makes it */

void vgpu_need_dlsym(void)
{
}

void vgpu_need_cuda(void)
{
}

void vgpu_attach(void)
{
}

bool vgpu_is_of_driver(const void *address)
{
	(void)address;
	return hooked;
}

void vgpu_context_began(int card)
{
	CHECK(card >= 0 && (unsigned)card < vgpu_state.ncards);
}

void vgpu_watcher_start(void)
{
}

void vgpu_tell_oom(int card, uint64_t bytes)
{
	(void)card;
	(void)bytes;
}

bool vgpu_any_api(void)
{
	return false;
}

void vgpu_tell_ungated(int card)
{
	(void)card;
}

/* The driver: fails or not, and writes what it likes into the structure. */
static int driver(int fd, unsigned long req, void *arg)
{
	unsigned how = (unsigned)take(&in, 1);
	size_t size = _IOC_SIZE(req);

	(void)fd;
	asked++;
	errno = 5;
	if (arg && how & 1 && size && !own)
		take_bytes(&in, arg, size);
	if (own && how & 2) {
		struct rm_control *c = arg;

		c->status = how & 4 ? 0x1f : 0;
		CHECK(_IOC_NR(req) == RM_CONTROL && size == sizeof *c && c->params_size == 8);
		if (how & 8)
			*(uint64_t *)(uintptr_t)c->params = take(&in, 4);
	}
	return how & 16 ? -1 : 0;
}

static int plain(int fd, unsigned long req, ...)
{
	(void)fd;
	CHECK(_IOC_TYPE(req) != RM_TYPE);
	asked++;
	return 3;
}

static void one_ioctl(unsigned times)
{
	static const uint8_t numbers[] = {RM_FREE,     RM_CONTROL,
					  RM_ALLOC,    0x27 /* of an older form */,
					  RM_VID_HEAP, RM_XFER};
	static const uint8_t sizes[] = {16, 32, 48, 32, 56, 184};
	static const uint32_t classes[] = {CLASS_CHANNEL_GROUP, CLASS_LOCAL_USER, CLASS_DEVICE,
					   CLASS_SUBDEVICE};
	unsigned kind = (unsigned)take(&in, 1), nr = (unsigned)take(&in, 1);
	size_t size = kind & 0x80 ? take(&in, 1) : sizes[(kind & 7) % 6];
	unsigned long req = _IOC(_IOC_READ | _IOC_WRITE, kind & 0x40 ? 'x' : RM_TYPE,
				 kind & 0x20 ? nr : numbers[nr % 6], size);
	uint64_t inner[160];
	void *arg = kind & 0x10 || !size ? NULL : malloc(size);

	hooked = kind & 8;
	take_bytes(&in, inner, (size_t)take(&in, 1));
	if (arg) {
		take_bytes(&in, arg, size);
		if (nr & 0x80 && size >= sizeof(uint32_t) * 4)
			((uint32_t *)arg)[3] = classes[nr >> 5 & 3];
		/* As a program's own pointers, what is in it leads somewhere, or nowhere. */
		if (nr & 0x10 && size >= 24)
			((uint64_t *)arg)[2] = (uintptr_t)inner;
		else if (nr & 0x10 && size == sizeof(struct rm_xfer))
			((uint64_t *)arg)[1] = (uintptr_t)inner;
	}
	for (unsigned i = 0; i < times; i++) {
		int before = asked;

		ioctl(7, req, arg);
		/* Memory above the limit is not asked for. */
		CHECK(asked - before <= 1 && ngroups <= MAX_GROUPS);
	}
	free(arg);
}

static bool any(const struct vgpu_item *item, uint64_t unused)
{
	(void)item;
	(void)unused;
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vgpu_grant grant = {.card[0].mem_limit = 1 << 20};
	static struct vgpu_cache_header header;
	static struct vgpu_slot slot;

	in = (struct input){.at = data, .left = size};
	asked = 0;
	vgpu_real_ioctl = plain;
	header.high_slot = 1;
	slot.card[0].mem = slot.card[1].mem = 0;
	vgpu_state.cache = (struct vgpu_cache){&header, &slot};
	vgpu_state.slot = &slot;
	vgpu_state.counted = true;
	vgpu_transport = driver;
	vgpu_state.grant = take(&in, 1) & 1 ? NULL : &grant;
	vgpu_state.ncards = (unsigned)take(&in, 1) % 3;
	for (int i = 0; i < MOST_CALLS && in.left; i++) {
		unsigned what = (unsigned)take(&in, 1);
		int r;

		switch (what % 8) {
		case 0:
			vgpu_rm_creating((int)(what >> 3) % 17 - 1);
			break;
		case 1:
			own = true;
			r = vgpu_rm_set_slices((int)(what >> 3) % 16, (uint32_t)take(&in, 3),
					       what & 0x80);
			own = false;
			CHECK(r == 0 || r == -ENOENT || r == -ESRCH || r == -EPERM);
			break;
		case 2:
			one_ioctl(what == 0xfa ? 600 : 1);
			break;
		case 3:
			if (what == 0xfb)
				ngroups = 0;
			break;
		default:
			one_ioctl(1);
		}
	}
	vgpu_table_sweep(&objects, 0, any);
	vgpu_shared_in_child();
	vgpu_state.other_cards = 0;
	vgpu_table_sweep(&devices, 0, any);
	ngroups = 0;
	vgpu_rm_creating(-1);
	return 0;
}
