// SPDX-License-Identifier: Apache-2.0
/* init.c - initialisation, entry and exit of every call, questions about devices. */
#define _GNU_SOURCE
#include "local.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct driver drv = {.lock = PTHREAD_MUTEX_INITIALIZER, .proc = -1};

void drv_model_lock(void)
{
	sim_lock(drv.st);
}

void drv_model_unlock(void)
{
	sim_unlock(drv.st);
}

/* Faults that a test asked for come first, as from a driver that is ill. */
static CUresult injected(const char *call)
{
	uint64_t slow = 0;
	int code = 0;
	bool hit;

	if (!drv.st->nfaults)
		return CUDA_SUCCESS;
	sim_lock(drv.st);
	hit = sim_fault_hit(drv.st, call, &code, &slow);
	sim_unlock(drv.st);
	if (slow) {
		struct timespec ts = {(time_t)(slow / 1000000000), (long)(slow % 1000000000)};

		nanosleep(&ts, NULL);
	}
	return hit ? code : CUDA_SUCCESS;
}

/* As a subscriber of CUPTI's: told of each call as it begins, on the thread that makes it. */
static void (*subscriber)(const char *call);
__attribute__((visibility("default"))) void simgpu_subscribe(void (*told)(const char *call));
void simgpu_subscribe(void (*told)(const char *call))
{
	__atomic_store_n(&subscriber, told, __ATOMIC_RELEASE);
}

CUresult drv_enter(const char *call, int need)
{
	void (*told)(const char *) = __atomic_load_n(&subscriber, __ATOMIC_ACQUIRE);
	CUcontext ctx;
	CUresult rc;

	if (told)
		told(call);
	if (!__atomic_load_n(&drv.ready, __ATOMIC_ACQUIRE) || drv.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	rc = injected(call);
	if (rc)
		return rc;
	pthread_mutex_lock(&drv.lock);
	while (drv.locked)
		pthread_cond_wait(&drv.changed, &drv.lock);
	drv.calls++;
	if (need == NEED_INIT)
		return CUDA_SUCCESS;
	ctx = drv_current();
	if (!ctx)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (!drv_ctx_valid(ctx))
		rc = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else if (drv.st->card[ctx->card].lost)
		rc = (CUresult)drv.st->card[ctx->card].lost;
	else if (mps_gone())
		rc = CUDA_ERROR_MPS_RPC_FAILURE;
	else if (__atomic_load_n(&drv.st->ctx[ctx->slot].faulted, __ATOMIC_RELAXED))
		rc = CUDA_ERROR_ILLEGAL_ADDRESS;
	return rc ? drv_leave(rc) : CUDA_SUCCESS;
}

CUresult drv_leave(CUresult rc)
{
	drv.calls--;
	pthread_mutex_unlock(&drv.lock);
	return rc;
}

static void forked_child(void)
{
	/* as with the real driver, a child cannot use what its parent started */
	if (drv.ready)
		drv.forked = true;
	pthread_mutex_init(&drv.lock, NULL);
}

static bool uuid_has_prefix(uint32_t card, const char *text, size_t n)
{
	const char *uuid = drv.st->card[card].conf.uuid;

	return n >= 5 && strncmp(uuid, text, n) == 0;
}

/* Without a list: all GPUs that are not cut into instances; else the first instance. */
static void all_devices(void)
{
	for (uint32_t i = 0; i < drv.st->ngpus; i++)
		if (sim_first_instance(drv.st, i) == drv.st->ncards)
			drv.card[drv.ndevices++] = i;
	if (!drv.ndevices)
		drv.card[drv.ndevices++] = drv.st->ngpus;
}

/* The card that an entry of the list names; SIM_MAX_CARDS: none. A GPU that is cut into
 * instances is its first. */
static uint32_t named_device(const char *entry, size_t n)
{
	uint32_t found = SIM_MAX_CARDS;

	for (uint32_t i = 0; i < drv.st->ncards; i++)
		if (uuid_has_prefix(i, entry, n))
			found = i;
	if (isdigit((unsigned char)*entry) && strtoul(entry, NULL, 10) < drv.st->ngpus)
		found = (uint32_t)strtoul(entry, NULL, 10);
	if (found < drv.st->ngpus && sim_first_instance(drv.st, found) < drv.st->ncards)
		found = sim_first_instance(drv.st, found);
	return found;
}

/* CUDA_VISIBLE_DEVICES: ordinals or UUID prefixes; the list ends at the first
 * entry that names no card, and with a MIG instance, of which a process has one. */
static void read_visible_devices(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	drv.ndevices = 0;
	if (!list) {
		all_devices();
		return;
	}
	while (*list && drv.ndevices < SIM_MAX_CARDS) {
		size_t n = strcspn(list, ",");
		uint32_t found = named_device(list, n);
		bool instance = found != SIM_MAX_CARDS && drv.st->card[found].conf.parent;

		if (found == SIM_MAX_CARDS || (instance && drv.ndevices))
			break;
		drv.card[drv.ndevices++] = found;
		if (instance)
			break;
		list += n + (list[n] == ',');
	}
}

CUresult cuInit(unsigned flags)
{
	static bool hooked;
	CUresult rc = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (drv.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&drv.lock);
	if (!drv.st) {
		drv.st = sim_attach(&drv);
		if (!drv.st) {
			fprintf(stderr,
				"simgpu: no machine: run `simgpu init` or set SIMGPU_STATE\n");
			pthread_mutex_unlock(&drv.lock);
			return CUDA_ERROR_NO_DEVICE;
		}
	}
	if (!hooked) {
		pthread_condattr_t monotonic;

		pthread_condattr_init(&monotonic);
		pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
		pthread_cond_init(&drv.wake, &monotonic);
		pthread_cond_init(&drv.changed, &monotonic);
		pthread_condattr_destroy(&monotonic);
		pthread_atfork(NULL, NULL, forked_child);
		hooked = true;
	}
	if (!drv.ready) {
		const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");

		drv.launches_block = blocking && atoi(blocking) != 0;
		read_visible_devices();
		drv.server = mps_server();
		if (drv.ndevices)
			__atomic_store_n(&drv.ready, true, __ATOMIC_RELEASE);
		else
			rc = CUDA_ERROR_NO_DEVICE;
	}
	pthread_mutex_unlock(&drv.lock);
	return rc ? rc : injected(__func__);
}

/* A process that ends gives its memory back at once, without waiting to be reaped. */
__attribute__((destructor)) static void leave_machine(void)
{
	bool locked = false;

	if (!drv.st || drv.proc < 0 || drv.forked)
		return;
	/* exit may come in the middle of a call of another thread: wait, but not for ever */
	for (int i = 0; i < 100 && !locked; i++) {
		locked = pthread_mutex_trylock(&drv.lock) == 0;
		if (!locked)
			usleep(1000);
	}
	sim_lock(drv.st);
	sim_advance_all(drv.st);
	sim_proc_drop(drv.st, (uint32_t)drv.proc);
	sim_unlock(drv.st);
	drv.proc = -1;
	__atomic_store_n(&drv.ready, false, __ATOMIC_RELEASE);
	if (locked)
		pthread_mutex_unlock(&drv.lock);
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 13000;
	return CUDA_SUCCESS;
}

bool drv_device_ok(CUdevice dev)
{
	return dev >= 0 && dev < drv.ndevices;
}

static const struct sim_card_config *conf_of(CUdevice dev)
{
	return &drv.st->card[drv.card[dev]].conf;
}

static CUresult enter_device(const char *call, const void *out, CUdevice dev)
{
	CUresult rc = drv_enter(call, NEED_INIT);

	if (rc)
		return rc;
	if (!out)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_device_ok(dev) ? CUDA_SUCCESS : drv_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetCount(int *count)
{
	ENTER(NEED_INIT);
	if (!count)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*count = drv.ndevices;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	CUresult rc = enter_device(__func__, dev, ordinal);

	if (rc)
		return rc;
	*dev = ordinal;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	CUresult rc = enter_device(__func__, name, dev);

	if (rc)
		return rc;
	if (len > 0)
		snprintf(name, (size_t)len, "%s", conf_of(dev)->name);
	return drv_leave(CUDA_SUCCESS);
}

static void parse_uuid(CUuuid *uuid, const char *text)
{
	const char *s = text + 4; /* after GPU- or MIG- */
	int n = 0;

	memset(uuid, 0, sizeof(*uuid));
	for (; *s && n < 32; s++) {
		int digit = *s == '-'   ? -1
			    : *s <= '9' ? *s - '0'
					: tolower((unsigned char)*s) - 'a' + 10;

		if (digit < 0)
			continue;
		uuid->bytes[n / 2] = (char)(uuid->bytes[n / 2] | (digit << (n % 2 ? 0 : 4)));
		n++;
	}
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	CUresult rc = enter_device(__func__, uuid, dev);

	if (rc)
		return rc;
	parse_uuid(uuid, conf_of(dev)->uuid);
	return drv_leave(CUDA_SUCCESS);
}

/* Of an instance, this one tells the GPU's. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	CUresult rc = enter_device(__func__, uuid, dev);
	uint32_t parent;

	if (rc)
		return rc;
	parent = conf_of(dev)->parent;
	parse_uuid(uuid, parent ? drv.st->card[parent - 1].conf.uuid : conf_of(dev)->uuid);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult rc = enter_device(__func__, bytes, dev);

	if (rc)
		return rc;
	*bytes = conf_of(dev)->memory - conf_of(dev)->reserved;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice dev)
{
	size_t n = 0;
	CUresult rc = bytes ? cuDeviceTotalMem_v2(&n, dev) : CUDA_ERROR_INVALID_VALUE;

	if (!rc)
		*bytes = n > 0xffffffffu ? 0xffffffffu : (unsigned)n;
	return rc;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	CUresult rc = enter_device(__func__, id, dev);

	if (rc)
		return rc;
	/* CUDA writes a domain of four digits where NVML writes eight */
	if (len > 0)
		snprintf(id, (size_t)len, "%s", conf_of(dev)->pci + 4);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	ENTER(NEED_INIT);
	if (!dev || !id)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < drv.ndevices; i++) {
		const char *pci = conf_of(i)->pci;

		if (strcasecmp(id, pci) == 0 || strcasecmp(id, pci + 4) == 0 ||
		    strcasecmp(id, pci + 9) == 0) {
			*dev = i;
			return drv_leave(CUDA_SUCCESS);
		}
	}
	return drv_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	CUresult rc = enter_device(__func__, major && minor ? major : NULL, dev);

	if (rc)
		return rc;
	*major = (int)conf_of(dev)->cc_major;
	*minor = (int)conf_of(dev)->cc_minor;
	return drv_leave(CUDA_SUCCESS);
}

static bool reachable(CUdevice a, CUdevice b)
{
	uint32_t link = conf_of(a)->link[drv.card[b]];

	return SIM_LINK_NV(link) || SIM_LINK_PCI(link) >= SIM_LINK_PXB;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	CUresult rc = enter_device(__func__, can, dev);

	if (rc)
		return rc;
	if (!drv_device_ok(peer))
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	*can = dev != peer && reachable(dev, peer);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetP2PAttribute(int *value, int attrib, CUdevice src, CUdevice dst)
{
	CUresult rc = enter_device(__func__, value, src);

	if (rc)
		return rc;
	if (!drv_device_ok(dst) || src == dst)
		return drv_leave(CUDA_ERROR_INVALID_DEVICE);
	/* 1 performance rank, 2 access, 3 native atomics */
	if (attrib == 2)
		*value = reachable(src, dst);
	else
		*value = attrib == 3 && SIM_LINK_NV(conf_of(src)->link[drv.card[dst]]);
	return drv_leave(CUDA_SUCCESS);
}

/* Attributes that depend on the card; all others are in the table. */
static int card_attribute(const struct sim_card_config *c, int attrib, int *value)
{
	unsigned domain = 0, bus = 0, device = 0;

	sscanf(c->pci, "%x:%x:%x", &domain, &bus, &device);
	switch (attrib) {
	case 16:
		*value = (int)c->sms;
		return 1;
	case 33:
		*value = (int)bus;
		return 1;
	case 34:
		*value = (int)device;
		return 1;
	case 50:
		*value = (int)domain;
		return 1;
	case 75:
		*value = (int)c->cc_major;
		return 1;
	case 76:
		*value = (int)c->cc_minor;
		return 1;
	case 134:
		*value = c->numa;
		return 1;
	}
	return 0;
}

#define MPS_ENABLED 133 /* the attribute */

CUresult cuDeviceGetAttribute(int *value, int attrib, CUdevice dev)
{
	/* number, value: an H100-like card; what is not listed is 0 */
	static const int table[][2] = {
		{1, 1024},        {2, 1024},      {3, 1024},     {4, 64},         {5, 2147483647},
		{6, 65535},       {7, 65535},     {8, 49152},    {9, 65536},      {10, 32},
		{11, 2147483647}, {12, 65536},    {13, 1980000}, {14, 512},       {15, 1},
		{19, 1},          {30, 512},      {31, 1},       {32, 1},         {36, 2619000},
		{37, 5120},       {38, 52428800}, {39, 2048},    {40, 3},         {41, 1},
		{51, 32},         {78, 1},        {79, 1},       {80, 1},         {81, 233472},
		{82, 65536},      {83, 1},        {86, 0},       {87, 2},         {88, 0},
		{89, 1},          {90, 1},        {91, 1},       {92, 1},         {93, 1},
		{94, 1},          {95, 1},        {97, 232448},  {98, 1},         {99, 1},
		{102, 1},         {103, 1},       {106, 32},     {108, 32768000}, {109, 134213632},
		{110, 1},         {111, 1024},    {113, 1},      {115, 1},        {116, 1},
		{119, 1},         {120, 1},       {121, 1},      {122, 1},
	};
	CUresult rc = enter_device(__func__, value, dev);

	if (rc)
		return rc;
	if (attrib < 1 || attrib > 160)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*value = attrib == MPS_ENABLED && drv.server;
	if (!card_attribute(conf_of(dev), attrib, value))
		for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
			if (table[i][0] == attrib)
				*value = table[i][1];
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	(void)target;
	(void)scope;
	ENTER(NEED_CTX);
	return drv_leave(CUDA_SUCCESS);
}
