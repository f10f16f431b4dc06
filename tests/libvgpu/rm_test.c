/* SPDX-License-Identifier: Apache-2.0 */
/* rm_test.c - what setting a slice asks of the driver, and what is noticed when it does
 * not obey. */
#include <sys/ioctl.h>

#include "../../libvgpu/kernel/call.c"
#include "../../libvgpu/kernel/devices.c"
#include "../../libvgpu/kernel/groups.c"
#include "../../libvgpu/slices/slices.c"

#include "check.h"

#define OWN_US 2000

struct vgpu_state vgpu_state;
struct vgpu_real vgpu_real;
int (*vgpu_transport)(int fd, unsigned long req, void *arg);
void *(*vgpu_real_dlsym)(void *handle, const char *name);

static struct {
	uint64_t slice_us;
	unsigned gets, sets;
	bool deaf, refuses;
	unsigned refuse; /* so many times */
	bool closed;
	uint32_t client; /* that it knows */
} driver;

void vgpu_need_dlsym(void)
{
}

static int answer(int fd, unsigned long req, void *arg)
{
	struct rm_control *c = arg;
	uint64_t *us;

	CHECK_EQ(fd, 7);
	if (_IOC_NR(req) != RM_CONTROL)
		return 0;
	us = (uint64_t *)(uintptr_t)c->params;
	if (driver.closed) {
		errno = EBADF;
		return -1;
	}
	c->status = c->client == driver.client ? 0 : STATUS_INVALID_CLIENT;
	if (c->status)
		return 0;
	if (c->cmd == CMD_GET_TIMESLICE) {
		driver.gets++;
		*us = driver.slice_us;
	} else {
		driver.sets++;
		c->status = driver.refuses || driver.refuse ? 0x1b : 0;
		driver.refuse -= driver.refuse > 0;
		if (!c->status && !driver.deaf)
			driver.slice_us = *us;
	}
	return 0;
}

static void new_client(uint32_t client)
{
	driver.slice_us = OWN_US;
	driver.client = client;
	driver.closed = false;
}

static void device(uint32_t client, uint32_t object, void *params)
{
	new_client(client);
	vgpu_device_made(7, client, object, (uintptr_t)params, false);
}

static void group_of(uint32_t client, uint32_t parent, uint32_t object)
{
	new_client(client);
	vgpu_rm_group_made(7, client, parent, object);
}

static void group(uint32_t client)
{
	group_of(client, 2, 3);
}

static void forget(void)
{
	ngroups = 0;
	missed = false;
	memset(had_some, 0, sizeof had_some);
}

static void new_group(void)
{
	forget();
	driver.deaf = driver.refuses = false;
	vgpu_rm_creating(0);
	group(1);
	vgpu_rm_creating(-1);
}

/* Sets, and checks the result and what was asked of the driver. */
static void set(uint32_t us, bool verify, int want, unsigned gets, unsigned sets)
{
	driver.gets = driver.sets = 0;
	CHECK_EQ(vgpu_rm_set_slices(0, us, verify), want);
	CHECK_EQ(driver.gets, gets);
	CHECK_EQ(driver.sets, sets);
}

static void test_one_call_for_a_change(void)
{
	new_group();
	set(700, false, 0, 2, 1); /* the first is read back */
	CHECK_EQ(driver.slice_us, 700);
	set(900, false, 0, 0, 1);
	set(900, false, 0, 0, 0);
	CHECK_EQ(driver.slice_us, 900);
	set(900, true, 0, 1, 0);
	set(800, true, 0, 2, 1);
	set(0, false, 0, 0, 1);
	CHECK_EQ(driver.slice_us, OWN_US);
	set(0, false, 0, 0, 0);
	CHECK_EQ(vgpu_rm_set_slices(1, 700, false), -ENOENT);
}

static void test_a_driver_that_does_not_obey(void)
{
	new_group();
	driver.deaf = true;
	set(700, false, -EPERM, 2, 1);
	set(700, false, -EPERM, 2, 1);

	new_group();
	set(700, false, 0, 2, 1);
	driver.deaf = true;
	set(900, false, 0, 0, 1); /* not noticed before the next look */
	set(900, true, -EPERM, 2, 1);
	set(900, false, -EPERM, 2, 1); /* from then on it is read back */
	driver.deaf = false;
	set(900, false, 0, 2, 1);
	set(700, false, 0, 0, 1);
	driver.refuses = true;
	set(900, false, -EPERM, 0, 1);
	set(700, false, 0, 1, 0); /* as it was */
	set(900, true, -EPERM, 1, 1);
	/* Somebody else has set it. */
	driver.refuses = false;
	set(700, true, 0, 1, 0);
	driver.slice_us = 5000;
	set(700, true, 0, 2, 1);
	CHECK_EQ(driver.slice_us, 700);
}

/* Applies a schedule, and checks what gresd is told. */
static void apply(uint32_t us, enum vgpu_look look, uint32_t told, uint32_t flags)
{
	struct vgpu_schedule s = {.slice_us = us};

	vgpu_slices_apply(0, &s, look);
	CHECK_EQ(vgpu_state.slot->card[0].slice_us, told);
	CHECK_EQ(vgpu_state.slot->flags, flags);
}

static void test_what_gresd_is_told(void)
{
	static struct vgpu_slot slot;

	vgpu_state.slot = &slot;
	new_group();
	apply(700, VGPU_READ_BACK, 700, VGPU_SLOT_SLICES_OK);
	driver.refuses = true;
	apply(800, VGPU_NO_LOOK, 0, VGPU_SLOT_SLICES_REFUSED);
	driver.refuses = false;
	apply(900, VGPU_NO_LOOK, 900, VGPU_SLOT_SLICES_OK);
	/* A group that is just going. */
	driver.refuse = 1;
	apply(700, VGPU_NO_LOOK, 700, VGPU_SLOT_SLICES_OK);
	CHECK_EQ(driver.slice_us, 700);
	/* A driver that we do not know: not at the first look, at which the context may be
	 * on its way. */
	forget();
	apply(700, VGPU_READ_BACK, 700, VGPU_SLOT_SLICES_OK);
	apply(700, VGPU_READ_BACK, 0, VGPU_SLOT_SLICES_REFUSED);
	apply(700, VGPU_READ_BACK, 0, VGPU_SLOT_SLICES_REFUSED);
	new_group();
	apply(700, VGPU_READ_BACK, 700, VGPU_SLOT_SLICES_OK);
}

/* A process that is suspended has no groups, which is no driver that we do not know. Those that it
 * then gets have another client, in the same descriptor perhaps. */
static void test_suspended(void)
{
	static struct vgpu_slot slot;

	vgpu_state.slot = &slot;
	vgpu_state.ncards = 1;
	new_group();
	apply(700, VGPU_READ_BACK, 700, VGPU_SLOT_SLICES_OK);
	CHECK(!vgpu_rm_grown());
	for (uint32_t client = 2; client < 300; client++) {
		driver.closed = client % 2;
		driver.client = 0;
		slot.card[0].launches++; /* the last before it was */
		for (int i = 0; i < 3; i++)
			apply(700, VGPU_READ_BACK, 0, 0);
		CHECK_EQ(ngroups, 0);
		group(client);
		CHECK(vgpu_rm_grown() && !vgpu_rm_grown());
		apply(700, VGPU_NEW_GROUPS, 700, VGPU_SLOT_SLICES_OK);
		CHECK_EQ(driver.slice_us, 700);
		CHECK_EQ(ngroups, 1);
	}
	/* One that works has groups, and they are not found. */
	driver.client = 0;
	slot.card[0].launches++;
	apply(700, VGPU_READ_BACK, 0, 0);
	slot.card[0].launches++;
	apply(700, VGPU_READ_BACK, 0, VGPU_SLOT_SLICES_REFUSED);
	group(300);
	apply(700, VGPU_NEW_GROUPS, 700, VGPU_SLOT_SLICES_OK);
	vgpu_state.ncards = 2;
}

/* Of several cards, the groups of a process that goes on are those of the devices that it had. */
static void test_devices(void)
{
	uint32_t number[2] = {5, 3};

	new_group();
	forget();
	for (uint32_t client = 1; client < 4; client++) {
		for (int card = 0; card < 2; card++) {
			uint32_t object = 10 * client + (uint32_t)card;

			device(client, object, &number[card]);
			vgpu_rm_creating(client == 1 ? card : -1);
			group_of(client, object, 50 + (uint32_t)card);
			vgpu_rm_creating(-1);
		}
		for (int card = 0; card < 2; card++) {
			CHECK_EQ(groups[ngroups - 2 + (unsigned)card].card, card);
			CHECK_EQ(vgpu_rm_set_slices(card, 700, true), 0);
		}
	}
	/* Devices whose number cannot be read, or is none. */
	number[0] = MAX_DEVICES;
	device(9, 10, &number[0]);
	device(9, 11, (void *)8);
	group_of(9, 11, 12);
	CHECK_EQ(groups[ngroups - 1].card, -1);
}

/* Groups that are not known keep the driver's own slice, which is not to be taken for ours. */
static void test_more_groups_than_fit(void)
{
	new_group();
	for (uint32_t i = 0; i < MAX_GROUPS - 1; i++)
		group_of(1, 2, 100 + i);
	CHECK_EQ(vgpu_rm_set_slices(0, 700, false), 0);
	group_of(1, 2, 99);
	CHECK_EQ(vgpu_rm_set_slices(0, 700, false), -EPERM);
}

int main(void)
{
	static struct vgpu_grant grant;

	vgpu_state.grant = &grant;
	vgpu_state.ncards = 2;
	vgpu_transport = answer;
	test_one_call_for_a_change();
	test_a_driver_that_does_not_obey();
	test_what_gresd_is_told();
	test_suspended();
	if (!emulated()) /* QEMU may not look at the memory */
		test_devices();
	test_more_groups_than_fit();
	return done("rm_test");
}
